//! The schema: every key of a target once, with its variable, default, secrecy and help. The parser, the command line's
//! `get` and help, and the documentation all read this table; nothing else lists keys.

use crate::arn::TargetId;
use crate::nearest::nearest;

/// How every variable of a target begins.
pub(crate) const VARIABLE_PREFIX: &str = "MINIO_NOTIFY_KAFKA_";

/// How the name of a property of librdkafka begins, where one is passed through.
pub(crate) const PROPERTY_PREFIX: &str = "kafka.";

/// Who may see a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Secrecy {
    /// Everyone.
    Public,
    /// Those who may see the configuration: names of users and paths of keys.
    Sensitive,
    /// No one: masked in listings, logs and errors.
    Secret,
}

macro_rules! keys {
    ($($variant:ident $name:literal $variable:literal $default:literal $secrecy:ident $origin:ident $help:literal)*) => {
        /// A key of `[notify_kafka.ID]`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "help() says what each is, for the program and the reader alike")]
        pub enum Key { $($variant,)* }

        impl Key {
            /// Every key, in the order in which they are shown.
            pub const ALL: [Key; [$($name),*].len()] = [$(Key::$variant),*];

            const fn row(self) -> Row {
                match self {
                    $(Key::$variant => Row {
                        name: $name, variable: $variable, default: $default,
                        secrecy: Secrecy::$secrecy, ours: matches!(Origin::$origin, Origin::Ours), help: $help,
                    },)*
                }
            }
        }
    };
}

/// Where a key comes from.
enum Origin {
    /// The reference has it, and its scripts set it.
    Reference,
    /// The reference has no such key.
    Ours,
}

struct Row {
    name: &'static str,
    variable: &'static str,
    default: &'static str,
    secrecy: Secrecy,
    ours: bool,
    help: &'static str,
}

keys! {
    Enable "enable" "ENABLE" "off" Public Reference
        "switches the target on; in the file a target is on unless this says off"
    Brokers "brokers" "BROKERS" "" Public Reference
        "comma-separated list (in the file also an array) of host:port; the port is 9092 if left out; required"
    Topic "topic" "TOPIC" "" Public Reference
        "the topic, 1 to 249 of A-Z a-z 0-9 . _ -; required"
    Sasl "sasl" "SASL" "off" Public Reference
        "switches authentication on; needs sasl_username and sasl_password"
    SaslUsername "sasl_username" "SASL_USERNAME" "" Sensitive Reference
        "the user's name"
    SaslPassword "sasl_password" "SASL_PASSWORD" "" Secret Reference
        "the password"
    SaslPasswordFile "sasl_password_file" "SASL_PASSWORD_FILE" "" Sensitive Ours
        "absolute path of a file that holds the password, instead of sasl_password"
    SaslMechanism "sasl_mechanism" "SASL_MECHANISM" "plain" Public Reference
        "plain, sha256 or sha512 (also SCRAM-SHA-256, SCRAM-SHA-512), in any case"
    Tls "tls" "TLS" "off" Public Reference
        "switches encryption on"
    TlsSkipVerify "tls_skip_verify" "TLS_SKIP_VERIFY" "off" Public Reference
        "trusts any certificate; only for tests"
    TlsClientAuth "tls_client_auth" "TLS_CLIENT_AUTH" "0" Public Reference
        "0 to 4; taken so that scripts go on working, and without effect: it is a policy of servers"
    TlsCa "tls_ca" "TLS_CA" "" Public Ours
        "absolute path of a PEM file with certificate authorities; without it the system's are trusted"
    ClientTlsCert "client_tls_cert" "CLIENT_TLS_CERT" "" Sensitive Reference
        "absolute path of the client's certificate on this machine, PEM; together with client_tls_key"
    ClientTlsKey "client_tls_key" "CLIENT_TLS_KEY" "" Sensitive Reference
        "absolute path of the client's key on this machine, PEM; together with client_tls_cert"
    QueueDir "queue_dir" "QUEUE_DIR" "" Public Reference
        "absolute path of the directory that keeps events until Kafka has them; required"
    QueueLimit "queue_limit" "QUEUE_LIMIT" "0" Public Reference
        "how many events may wait; 0 is 100000"
    Version "version" "VERSION" "" Public Reference
        "a Kafka version as a.b.c; checked, and without effect: the client asks the broker"
    BatchSize "batch_size" "BATCH_SIZE" "0" Public Reference
        "at most this many events in one batch; 0 and 1 leave it to the client"
    BatchCommitTimeout "batch_commit_timeout" "BATCH_COMMIT_TIMEOUT" "0s" Public Reference
        "how long a batch may wait for more events, as 500ms or 1m30s; 0s leaves it to the client"
    CompressionCodec "compression_codec" "PRODUCER_COMPRESSION_CODEC" "lz4" Public Reference
        "none, gzip, snappy, lz4 or zstd, in any case"
    CompressionLevel "compression_level" "PRODUCER_COMPRESSION_LEVEL" "" Public Reference
        "0 to 9 for gzip, 0 to 12 for lz4 and zstd, -1 for the codec's own; left out: the codec's own"
    Acks "acks" "ACKS" "all" Public Ours
        "all (also -1), 1 or 0: which replicas must have an event before it counts as delivered"
    Partitioner "partitioner" "PARTITIONER" "fnv1a_random" Public Ours
        "how the key chooses the partition: fnv1a_random as the reference, murmur2_random as Java clients, fnv1a, murmur2, consistent_random, consistent, random"
    Headers "headers" "HEADERS" "on" Public Ours
        "adds the header tidegate-id, by which consumers can drop duplicates; off for the reference's bare messages"
    Comment "comment" "COMMENT" "" Public Reference
        "free text"
}

/// Names that other systems use for keys of ours, where the nearest name by spelling would mislead.
const FOREIGN: [(&str, Key); 6] = [
    ("tls_enable", Key::Tls),
    ("sasl_enable", Key::Sasl),
    ("tls_client_cert", Key::ClientTlsCert),
    ("tls_client_key", Key::ClientTlsKey),
    ("producer_compression_codec", Key::CompressionCodec),
    ("producer_compression_level", Key::CompressionLevel),
];

impl Key {
    /// The name in the file and on the command line: `queue_dir`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The name of the environment variable for a target: `MINIO_NOTIFY_KAFKA_QUEUE_DIR_primary`, without the
    /// identifier for the default target.
    #[must_use]
    pub fn variable(self, id: &TargetId) -> String {
        self.variable_for(id.as_str())
    }

    pub(super) fn variable_for(self, id: &str) -> String {
        let variable = self.row().variable;
        if id == "_" {
            format!("{VARIABLE_PREFIX}{variable}")
        } else {
            format!("{VARIABLE_PREFIX}{variable}_{id}")
        }
    }

    /// The value that holds where nothing is set; `""` is none.
    #[must_use]
    pub const fn default_text(self) -> &'static str {
        self.row().default
    }

    /// Who may see the value.
    #[must_use]
    pub const fn secrecy(self) -> Secrecy {
        self.row().secrecy
    }

    /// Whether the key is ours and not one of the reference.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        self.row().ours
    }

    /// One line on what the key does and what it takes.
    #[must_use]
    pub const fn help(self) -> &'static str {
        self.row().help
    }

    /// The key of a name, case-sensitive.
    #[must_use]
    pub fn named(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }

    /// The key that an unknown name was probably meant for.
    #[must_use]
    pub fn nearest(unknown: &str) -> Option<Key> {
        let foreign =
            FOREIGN.iter().find(|(name, _)| unknown.eq_ignore_ascii_case(name)).map(|(_, key)| *key);
        foreign.or_else(|| nearest(unknown, Key::ALL.map(Key::name)).and_then(Key::named))
    }

    /// Splits what follows the prefix of a variable into key and identifier. The longest key wins, so that
    /// `TLS_CLIENT_AUTH` is a key of the default target and not the key `TLS` of a target `CLIENT_AUTH`.
    pub(super) fn of_variable(rest: &str) -> Option<(Key, &str)> {
        let fits = Key::ALL.into_iter().filter_map(|key| match rest.strip_prefix(key.row().variable)? {
            "" => Some((key, "_")),
            rest => rest.strip_prefix('_').map(|id| (key, id)),
        });
        fits.max_by_key(|(key, _)| key.row().variable.len())
    }

    /// The variable that an unknown one was probably meant for: any beginning of it that ends before a `_` may be the
    /// key.
    pub(super) fn nearest_variable(rest: &str) -> Option<String> {
        let ends = std::iter::once(rest.len()).chain(rest.rmatch_indices('_').map(|(at, _)| at));
        ends.take(32).find_map(|end| {
            let foreign = FOREIGN.iter().find(|(name, _)| rest[..end].eq_ignore_ascii_case(name));
            let exact = || Key::ALL.into_iter().find(|key| rest[..end].eq_ignore_ascii_case(key.name()));
            let spelling = || {
                let variable = nearest(&rest[..end], Key::ALL.map(|key| key.row().variable))?;
                Key::ALL.into_iter().find(|key| key.row().variable == variable)
            };
            let key = foreign.map(|(_, key)| *key).or_else(exact).or_else(spelling)?;
            Some(format!("{VARIABLE_PREFIX}{}{}", key.row().variable, &rest[end..]))
        })
    }
}

/// Whether a passed-through property of librdkafka holds a secret, by its name.
pub(super) fn is_secret_property(name: &str) -> bool {
    ["password", "secret", "token", "key.pem", "oauthbearer.config", "jaas"]
        .iter()
        .any(|part| name.contains(part))
}

/// The properties of librdkafka that the engine sets itself, with what to use instead.
const OWNED_PROPERTIES: [(&str, &str); 31] = [
    ("bootstrap.servers", "the key brokers"),
    ("metadata.broker.list", "the key brokers"),
    ("acks", "the key acks"),
    ("request.required.acks", "the key acks"),
    ("compression.codec", "the key compression_codec"),
    ("compression.type", "the key compression_codec"),
    ("compression.level", "the key compression_level"),
    ("partitioner", "the key partitioner"),
    ("security.protocol", "the keys sasl and tls"),
    ("sasl.mechanism", "the key sasl_mechanism"),
    ("sasl.mechanisms", "the key sasl_mechanism"),
    ("sasl.username", "the key sasl_username"),
    ("sasl.password", "the key sasl_password or sasl_password_file"),
    ("ssl.ca.location", "the key tls_ca"),
    ("ssl.certificate.location", "the key client_tls_cert"),
    ("ssl.key.location", "the key client_tls_key"),
    ("enable.ssl.certificate.verification", "the key tls_skip_verify"),
    ("enable.idempotence", "nothing: order and at-least-once need it on"),
    ("max.in.flight", "nothing: order needs the client's own value"),
    ("max.in.flight.requests.per.connection", "nothing: order needs the client's own value"),
    ("message.timeout.ms", "nothing: an event waits on disk until it is delivered"),
    ("delivery.timeout.ms", "nothing: an event waits on disk until it is delivered"),
    ("transactional.id", "nothing: the queue sends without transactions"),
    ("transaction.timeout.ms", "nothing: the queue sends without transactions"),
    ("delivery.report.only.error", "nothing: every delivery must be reported"),
    ("enable.gapless.guarantee", "nothing: the queue has its own"),
    ("retries", "nothing: an event is retried until it is delivered"),
    ("message.send.max.retries", "nothing: an event is retried until it is delivered"),
    ("statistics.interval.ms", "nothing: the target's state needs the engine's own value"),
    ("queue.buffering.max.messages", "nothing: what waits is on disk, and the window bounds the rest"),
    ("queue.buffering.max.kbytes", "nothing: what waits is on disk, and the window bounds the rest"),
];

/// What to use instead of a property that the engine owns; `None` if it may be passed.
pub(super) fn owned_property(name: &str) -> Option<&'static str> {
    OWNED_PROPERTIES.iter().find(|(owned, _)| *owned == name).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_reference_has_its_name_variable_default_and_secrecy() {
        let table = include_str!("../../tests/vectors/kafka-config-keys.tsv");
        let mut keys = 0;
        for row in table.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>()) {
            if !row[1].starts_with("MINIO_") {
                continue;
            }
            let key = Key::named(row[0]).expect(row[0]);
            let default = if row[2] == "(empty)" { "" } else { row[2] };

            assert_eq!(format!("{}[_ID]", key.variable(&TargetId::default())), row[1]);
            // An empty codec is none in the reference; ours compresses unless told otherwise.
            assert_eq!(
                key.default_text(),
                if key == Key::CompressionCodec { "lz4" } else { default },
                "{}",
                row[0]
            );
            assert_eq!(key.secrecy() == Secrecy::Secret, row[6].starts_with("secret"), "{}", row[0]);
            assert!(!key.is_ours(), "{}", row[0]);
            keys += 1;
        }
        assert_eq!(keys, Key::ALL.into_iter().filter(|key| !key.is_ours()).count());
    }

    #[test]
    fn the_longest_key_wins_when_a_variable_is_split() {
        for (rest, key, id) in [
            ("TLS_CLIENT_AUTH", Key::TlsClientAuth, "_"),
            ("TLS_CLIENT_AUTH_x", Key::TlsClientAuth, "x"),
            ("TLS_CLIENT", Key::Tls, "CLIENT"),
            ("SASL_USERNAME", Key::SaslUsername, "_"),
            ("SASL_PASSWORD_FILE", Key::SaslPasswordFile, "_"),
            ("BROKERS_a_B_c", Key::Brokers, "a_B_c"),
            ("BROKERS_", Key::Brokers, ""),
            ("PRODUCER_COMPRESSION_CODEC_x", Key::CompressionCodec, "x"),
        ] {
            assert_eq!(Key::of_variable(rest), Some((key, id)), "{rest}");
        }
        assert_eq!(Key::of_variable("BROKERSX"), None);
        assert_eq!(Key::of_variable("brokers"), None);
    }

    #[test]
    fn every_variable_reads_back_as_its_key_and_identifier() {
        for key in Key::ALL {
            for id in ["_", "primary", "P_1"] {
                let variable = key.variable(&id.parse().expect(id));
                let rest = variable.strip_prefix(VARIABLE_PREFIX).expect("the prefix");

                assert_eq!(Key::of_variable(rest), Some((key, id)), "{variable}");
            }
        }
    }

    #[test]
    fn an_unknown_name_finds_the_key_that_was_meant() {
        assert_eq!(Key::nearest("topik"), Some(Key::Topic));
        assert_eq!(Key::nearest("tls_client_cert"), Some(Key::ClientTlsCert));
        assert_eq!(Key::nearest("colour"), None);
        let variable = |rest| Key::nearest_variable(rest).unwrap_or_default();
        assert_eq!(variable("QUEUEDIR_PRIMARY"), "MINIO_NOTIFY_KAFKA_QUEUE_DIR_PRIMARY");
        assert_eq!(variable("COMPRESSION_CODEC_x"), "MINIO_NOTIFY_KAFKA_PRODUCER_COMPRESSION_CODEC_x");
        assert_eq!(variable("COLOUR"), "");
    }
}
