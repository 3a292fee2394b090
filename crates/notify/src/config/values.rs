//! The texts of values into types. Each parser's error is what stands after the value in a problem: what was expected.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// A choice among words: an enum, its words, and the error that lists them.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $text:literal $(| $alias:literal)*,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// The word that librdkafka takes.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            pub(super) fn parse(text: &str) -> Result<$name, String> {
                $(if [$text $(, $alias)*].iter().any(|word| word.eq_ignore_ascii_case(text)) {
                    return Ok($name::$variant);
                })*
                Err(format!("expected one of {}", [$($text $(, $alias)*),*].join(", ")))
            }
        }
    };
}

choices! {
    /// How the user proves to be one.
    Mechanism {
        /// The password in clear text.
        Plain "PLAIN",
        /// A challenge with SHA-256.
        ScramSha256 "SCRAM-SHA-256" | "sha256",
        /// A challenge with SHA-512.
        ScramSha512 "SCRAM-SHA-512" | "sha512",
    }
}

choices! {
    /// How batches are compressed on the way to the broker, and kept there.
    Codec {
        /// Not at all.
        None "none",
        /// Small and slow.
        Gzip "gzip",
        /// Fast.
        Snappy "snappy",
        /// Fast; the default.
        Lz4 "lz4",
        /// Smallest.
        Zstd "zstd",
    }
}

choices! {
    /// Which replicas must have an event before it counts as delivered.
    Acks {
        /// All that are in sync; the default, and the only one that survives the loss of a broker.
        All "all" | "-1",
        /// The leader.
        Leader "1",
        /// None: sent is delivered.
        None "0",
    }
}

choices! {
    /// How the message key chooses the partition.
    Partitioner {
        /// FNV-1a, as the reference's client; messages without a key anywhere. The default.
        Fnv1aRandom "fnv1a_random",
        /// FNV-1a.
        Fnv1a "fnv1a",
        /// Murmur2, as Java clients; messages without a key anywhere.
        Murmur2Random "murmur2_random",
        /// Murmur2.
        Murmur2 "murmur2",
        /// CRC-32, librdkafka's own default; messages without a key anywhere.
        ConsistentRandom "consistent_random",
        /// CRC-32.
        Consistent "consistent",
        /// Anywhere; events of one key lose their order.
        Random "random",
    }
}

/// Where one broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// A name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The port; [`PORT`](Broker::PORT) if none was given.
    pub port: u16,
}

impl Broker {
    /// Kafka's port, where none is given.
    pub const PORT: u16 = 9092;
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, shut) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{shut}:{}", self.host, self.port)
    }
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    let is = |words: [&str; 6]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is(["on", "true", "t", "1", "enabled", "yes"]) {
        Ok(true)
    } else if is(["off", "false", "f", "0", "disabled", "no"]) {
        Ok(false)
    } else {
        Err("expected on or off (also true, t, 1, enabled, yes and their opposites, in any case)".to_owned())
    }
}

pub(super) fn brokers(text: &str) -> Result<Vec<Broker>, String> {
    text.split(',').map(str::trim).map(broker).collect()
}

fn broker(text: &str) -> Result<Broker, String> {
    let refused = |why: &str| Err(format!("broker {text:?}: {why}, expected host:port"));
    if text.is_empty() {
        return refused("an empty item in the list");
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return refused(&format!("{scheme:?} is a URL's scheme, leave it out"));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) if port.starts_with(':') => (host, Some(&port[1..])),
            _ => return refused("`[` without `]`"),
        },
        None if text.matches(':').count() > 1 => return refused("an IPv6 address stands in brackets"),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if text.starts_with('[') && host.parse::<std::net::Ipv6Addr>().is_err() {
        return refused("no IPv6 address in the brackets");
    }
    if !text.starts_with('[') && !is_host(host) {
        return refused("the host has labels of letters, digits, `-` and `_`, separated by dots");
    }
    let all_digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match port.map(|port| port.parse::<u16>().ok().filter(|number| *number > 0 && all_digits(port))) {
        Some(None) => refused("the port is a number from 1 to 65535"),
        port => Ok(Broker { host: host.to_owned(), port: port.flatten().unwrap_or(Broker::PORT) }),
    }
}

/// A host's name as DNS and containers have them: underscores too, which the reference refuses.
fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253 && host.strip_suffix('.').unwrap_or(host).split('.').all(label)
}

pub(super) fn topic(text: &str) -> Result<String, String> {
    /// The longest topic that Kafka takes.
    const BYTES_MAX: usize = 249;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(c) = text.chars().find(|c| !legal(*c)) {
        return Err(format!("{c:?} is not taken in a topic, only A-Z a-z 0-9 . _ -"));
    }
    match text {
        "." | ".." => Err("a topic is not `.` or `..`".to_owned()),
        _ if text.len() > BYTES_MAX => Err(format!("{} bytes, a topic has at most {BYTES_MAX}", text.len())),
        _ => Ok(text.to_owned()),
    }
}

pub(super) fn absolute_path(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(PathBuf::from(text))
    } else {
        Err("expected an absolute path on this machine, beginning with `/`".to_owned())
    }
}

pub(super) fn whole<T: TryFrom<i128> + PartialOrd + fmt::Display>(
    text: &str,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let number = text.parse::<i128>().ok().and_then(|number| T::try_from(number).ok());
    let in_range = number.filter(|number| range.contains(number));
    in_range.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
}

/// A Kafka version: `a.b.c`, or `0.a.b.c` below 1.0. Checked as the reference checks it.
pub(super) fn version(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('.').collect();
    let numbers =
        parts.iter().all(|part| (1..=5).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()));
    let count = if parts[0] == "0" { 4 } else { 3 };
    if numbers && parts.len() == count {
        Ok(text.to_owned())
    } else {
        Err("expected three numbers as 2.8.0, or four below 1.0 as 0.11.0.2".to_owned())
    }
}

/// A duration as Go writes it: `0`, `500ms`, `1m30s`, `1.5h`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let expected = || "expected a duration as 500ms, 30s or 1m30s".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut seconds, mut rest) = (0.0, text);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(expected)?;
        let (number, unit) = rest.split_at(digits);
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == &unit[..end]).ok_or_else(expected)?;
        seconds += number.parse::<f64>().map_err(|_| expected())? * factor;
        rest = &unit[end..];
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_switch_takes_every_usual_word_in_any_case_and_junk_is_an_error() {
        for (on, off) in
            [("1", "0"), ("t", "F"), ("TRUE", "false"), ("On", "OFF"), ("enabled", "Disabled"), ("yes", "no")]
        {
            assert_eq!((switch(on), switch(off)), (Ok(true), Ok(false)));
        }
        for junk in ["", "onn", "2", "y", "-1"] {
            assert!(switch(junk).is_err(), "{junk}");
        }
    }

    #[test]
    fn brokers_are_trimmed_and_the_port_is_9092_if_left_out() {
        let list = brokers("10.0.0.1:9093, kafka_1.local ,[::1]:1,[fe80::1]").expect("a list");

        let texts: Vec<String> = list.iter().map(Broker::to_string).collect();
        assert_eq!(texts, ["10.0.0.1:9093", "kafka_1.local:9092", "[::1]:1", "[fe80::1]:9092"]);
    }

    #[test]
    fn a_broker_that_no_client_could_reach_is_refused_with_the_reason() {
        for (text, says) in [
            ("https://a:1", "URL's scheme"),
            ("a:1,,b:2", "an empty item"),
            (":9092", "the host has labels"),
            ("a b:1", "the host has labels"),
            ("-a:1", "the host has labels"),
            ("a:0", "from 1 to 65535"),
            ("a:+1", "from 1 to 65535"),
            ("a:65536", "from 1 to 65535"),
            ("::1", "brackets"),
            ("[::1", "without `]`"),
            ("[a]:1", "no IPv6 address"),
        ] {
            let reason = brokers(text).expect_err(text);
            assert!(reason.contains(says), "{text}: {reason}");
        }
    }

    #[test]
    fn mechanisms_are_taken_in_both_spellings_and_none_falls_back_to_plain() {
        for text in ["sha512", "SHA512", "scram-sha-512", "SCRAM-SHA-512"] {
            assert_eq!(Mechanism::parse(text), Ok(Mechanism::ScramSha512));
        }
        assert_eq!(Mechanism::parse("plain"), Ok(Mechanism::Plain));
        for junk in ["scram", "SCRAM-SHA-1", "sha-512", " plain"] {
            let reason = Mechanism::parse(junk).expect_err(junk);
            assert_eq!(reason, "expected one of PLAIN, SCRAM-SHA-256, sha256, SCRAM-SHA-512, sha512");
        }
    }

    #[test]
    fn versions_are_checked_as_the_reference_checks_them() {
        for good in ["2.8.0", "0.11.0.2", "3.10.0"] {
            assert!(version(good).is_ok(), "{good}");
        }
        for bad in ["2.8", "0.11.0", "v2.8.0", "2.8.x", "2..0", "2.8.0.1", ""] {
            assert!(version(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1.5s", 1500),
            (".5s", 500),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "1", "s", "-1s", "1 s", "1d", "1.2.3s", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_topic_is_one_that_kafka_takes() {
        assert!(topic(&"a".repeat(249)).is_ok());
        for bad in ["a b", "ä", "a/b", ".", "..", &"a".repeat(250)] {
            assert!(topic(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd_for_a_parser(text in ".{0,20}") {
            let _ = (switch(&text), brokers(&text), topic(&text), version(&text), duration(&text));
            let _ = (whole(&text, 0u32..=9), absolute_path(&text), Codec::parse(&text));
        }

        #[test]
        fn a_broker_reads_back_as_it_was_written(host in "[a-z0-9]{1,9}(\\.[a-z0-9]{1,9}){0,2}", port in 1u16..) {
            let text = format!("{host}:{port}");

            prop_assert_eq!(brokers(&text), Ok(vec![Broker { host, port }]));
        }
    }
}
