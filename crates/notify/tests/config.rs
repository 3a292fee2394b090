//! What a configuration means: file and environment together, and what is said about each mistake.

use proptest::prelude::*;
use tidegate_notify::config::{
    Acks, Codec, Key, Mechanism, Partitioner, Problem, Secrecy, SecretSource, Source, Warning,
};
use tidegate_notify::{Config, EventName, EventSet, TargetConfig};

/// The least that a target needs.
const PRIMARY: &str = r#"
[notify_kafka.primary]
brokers = "a:9092"
topic = "events"
queue_dir = "/var/lib/tidegate"
"#;

fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| (format!("MINIO_NOTIFY_KAFKA_{name}"), (*value).to_owned())).collect()
}

fn parse(file: &str, environment: &[(&str, &str)]) -> Config {
    Config::parse(Some(file), variables(environment)).expect("TOML")
}

/// The target `primary` with these lines in its table.
fn primary(lines: &str) -> Config {
    parse(&format!("{PRIMARY}{lines}\n"), &[])
}

fn the_target(config: &Config) -> &TargetConfig {
    assert!(config.broken.is_empty(), "{:?}", config.broken);
    &config.targets[0]
}

fn the_problems(config: &Config) -> Vec<String> {
    config.broken[0].problems.iter().map(Problem::to_string).collect()
}

fn warnings(config: &Config) -> Vec<String> {
    config.warnings.iter().map(Warning::to_string).collect()
}

#[test]
fn a_target_of_three_keys_works_and_has_the_defaults() {
    let config = primary("");
    let target = the_target(&config);

    assert_eq!(target.id.as_str(), "primary");
    assert_eq!(target.brokers[0].to_string(), "a:9092");
    assert_eq!(target.queue_limit, 100_000);
    assert_eq!((target.compression.codec, target.compression.level), (Codec::Lz4, None));
    assert_eq!(
        (target.acks, target.partitioner, target.headers),
        (Acks::All, Partitioner::Fnv1aRandom, true)
    );
    assert_eq!((&target.sasl, &target.tls, target.batch_size), (&None, &None, None));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn every_default_of_the_schema_is_a_value_and_may_be_written_out() {
    let with_default =
        Key::ALL.into_iter().filter(|key| !key.default_text().is_empty() && *key != Key::Enable);
    let lines: Vec<String> =
        with_default.map(|key| format!("{} = {:?}", key.name(), key.default_text())).collect();
    let config = primary(&lines.join("\n"));
    let mut written_out = the_target(&config).clone();
    written_out.settings = the_target(&primary("")).settings.clone();

    assert_eq!(&written_out, the_target(&primary("")));
}

#[test]
fn every_key_has_its_type() {
    let config = primary(
        r#"
        enable = true
        sasl = "ON"
        sasl_username = "user"
        sasl_password = "hunter2"
        sasl_mechanism = "scram-sha-512"
        tls = 1
        tls_skip_verify = "yes"
        tls_ca = "/etc/ca.pem"
        client_tls_cert = "/etc/cert.pem"
        client_tls_key = "/etc/key.pem"
        queue_limit = 5
        version = "2.8.0"
        batch_size = 100
        batch_commit_timeout = "1m30s"
        compression_codec = "ZSTD"
        compression_level = 3
        partitioner = "murmur2_random"
        headers = "off"
        comment = "a = b"
        "#,
    );
    let target = the_target(&config);

    let sasl = target.sasl.as_ref().expect("sasl is on");
    assert_eq!((sasl.mechanism.as_str(), sasl.username.as_str()), ("SCRAM-SHA-512", "user"));
    assert!(matches!(&sasl.password, SecretSource::Inline(secret) if secret.expose() == "hunter2"));
    let tls = target.tls.as_ref().expect("tls is on");
    assert!(tls.skip_verify);
    assert_eq!(tls.ca.as_deref(), Some("/etc/ca.pem".as_ref()));
    assert_eq!(tls.client.as_ref().map(|client| client.key.clone()), Some("/etc/key.pem".into()));
    assert_eq!((target.queue_limit, target.batch_size.map(u32::from)), (5, Some(100)));
    assert_eq!(target.batch_commit_timeout.map(|timeout| timeout.as_secs()), Some(90));
    assert_eq!((target.compression.codec, target.compression.level), (Codec::Zstd, Some(3)));
    assert_eq!((target.partitioner, target.headers), (Partitioner::Murmur2Random, false));
    assert_eq!((target.version.as_deref(), target.comment.as_str()), (Some("2.8.0"), "a = b"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn a_variable_wins_over_the_file_key_by_key_and_an_empty_one_is_not_set() {
    let environment = [("TOPIC_primary", " other "), ("BROKERS_primary", ""), ("QUEUE_LIMIT_primary", "7")];
    let config = parse(PRIMARY, &environment);
    let target = the_target(&config);

    assert_eq!((target.topic.as_str(), target.queue_limit), ("other", 7));
    assert_eq!(target.brokers[0].to_string(), "a:9092");
    let source = |key| target.settings.get(key).expect("set").source().clone();
    assert_eq!(source(Key::Topic).to_string(), "MINIO_NOTIFY_KAFKA_TOPIC_primary");
    assert_eq!(source(Key::Brokers), Source::File { line: 3 });
}

#[test]
fn a_target_of_the_environment_alone_is_as_good_as_one_in_the_file() {
    let list = [
        ("ENABLE", "on"),
        ("BROKERS", "a:1,b"),
        ("TOPIC", "t"),
        ("QUEUE_DIR", "/q"),
        ("TLS_CLIENT_AUTH", "0"),
    ];
    let config = Config::parse(None, variables(&list)).expect("no file");

    assert_eq!(the_target(&config).id.as_str(), "_");
    assert_eq!(config.arns()[0].to_string(), "arn:minio:sqs::_:kafka");
    let list = list.map(|(name, value)| (format!("{name}_PRIMARY"), value));
    let list: Vec<_> = list.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let named = Config::parse(None, variables(&list)).expect("no file");
    assert_eq!(named.arns()[0].to_string(), "arn:minio:sqs::PRIMARY:kafka");
    assert_eq!(the_target(&named).brokers.len(), 2);
}

#[test]
fn variables_without_an_enable_variable_are_warned_of_by_name() {
    let config =
        Config::parse(None, variables(&[("BROKERS_ID", "a:1"), ("TOPIC_ID", "t")])).expect("no file");

    assert!(config.targets.is_empty() && config.broken.is_empty());
    let expected = "MINIO_NOTIFY_KAFKA_BROKERS_ID, MINIO_NOTIFY_KAFKA_TOPIC_ID set, but no target \"ID\" exists: \
                    set MINIO_NOTIFY_KAFKA_ENABLE_ID=on";
    assert_eq!(warnings(&config), [expected]);
}

#[test]
fn identifiers_that_differ_in_case_are_two_targets_and_a_stray_variable_hints_at_the_other() {
    let config = parse(PRIMARY, &[("TOPIC_PRIMARY", "other")]);

    assert_eq!(the_target(&config).topic, "events");
    assert!(warnings(&config)[0].ends_with("or spell it as the target \"primary\" is spelt: case counts"));
}

#[test]
fn a_variable_that_names_no_key_is_warned_of_with_the_one_that_was_meant() {
    let config = parse(PRIMARY, &[("TOPIK_primary", "x"), ("COLOUR", "red")]);

    assert_eq!(
        warnings(&config),
        [
            "MINIO_NOTIFY_KAFKA_COLOUR is set and names no key",
            "MINIO_NOTIFY_KAFKA_TOPIK_primary is set and names no key; did you mean MINIO_NOTIFY_KAFKA_TOPIC_primary?",
        ]
    );
}

#[test]
fn one_bad_target_never_hides_another() {
    let file = format!(
        "{PRIMARY}\n[notify_kafka.bad]\nqueue_limit = \"abc\"\n\n[notify_kafka.off]\nenable = \"off\"\n"
    );
    let config = parse(&file, &[("ENABLE_worse", "maybe")]);

    assert_eq!(config.targets.len(), 1);
    assert_eq!(config.broken.iter().map(|target| target.id.as_str()).collect::<Vec<_>>(), ["bad", "worse"]);
    assert_eq!(config.disabled[0].id.as_str(), "off");
    let problems = the_problems(&config);
    assert!(problems[0].starts_with("brokers: not set: every target needs it; set brokers in the file or "));
    assert_eq!(
        problems[3],
        "queue_limit = \"abc\" (line 8): expected a whole number from 0 to 18446744073709551615"
    );
    let worse = config.broken[1].problems[0].to_string();
    assert!(
        worse.starts_with("enable = \"maybe\" (MINIO_NOTIFY_KAFKA_ENABLE_worse): expected on or off"),
        "{worse}"
    );
}

#[test]
fn each_mistake_names_key_value_source_and_what_to_do() {
    for (line, says) in [
        (
            "sasl_mechanism = \"scram\"",
            "sasl_mechanism = \"scram\" (line 6): expected one of PLAIN, SCRAM-SHA-256",
        ),
        ("sasl = \"onn\"", "sasl = \"onn\" (line 6): expected on or off"),
        ("sasl = \"on\"", "sasl_username: not set: sasl is on and needs it"),
        ("client_tls_cert = \"/c\"", "client_tls_key: not set: client_tls_cert is set and needs it"),
        ("client_tls_key = \"/k\"", "client_tls_cert: not set: client_tls_key is set and needs it"),
        ("tls_ca = \"ca.pem\"", "tls_ca = \"ca.pem\" (line 6): expected an absolute path"),
        ("tls_client_auth = 5", "tls_client_auth = \"5\" (line 6): expected a whole number from 0 to 4"),
        ("version = \"2.8\"", "version = \"2.8\" (line 6): expected three numbers"),
        ("batch_commit_timeout = 5", "batch_commit_timeout = \"5\" (line 6): expected a duration"),
        ("compression_codec = \"brotli\"", "expected one of none, gzip, snappy, lz4, zstd"),
        ("compression_codec = \"gzip\"\ncompression_level = 10", "expected a whole number from -1 to 9"),
        ("partitioner = \"round\"", "expected one of fnv1a_random"),
        ("acks = 2", "acks = \"2\" (line 6): expected one of all, -1, 1, 0"),
        ("topik = \"x\"", "topik (line 6): unknown key; did you mean topic?"),
        ("colour = \"x\"", "colour (line 6): unknown key; known are enable, brokers"),
        ("tls_client_cert = \"/x\"", "did you mean client_tls_cert?"),
        ("kafka.acks = 1", "kafka.acks (line 6): the engine sets this property itself; use the key acks"),
        ("\"kafka.transactional.id\" = \"x\"", "kafka.transactional.id (line 6): the engine sets"),
        ("queue_limit = [1]", "queue_limit (line 6): expected a string, a number"),
        ("queue_limit = -1", "queue_limit = \"-1\" (line 6): expected a whole number"),
    ] {
        let config = primary(line);
        let problems = the_problems(&config);

        assert!(problems.iter().any(|problem| problem.contains(says)), "{line}: {problems:?}");
    }
}

#[test]
fn a_target_without_queue_dir_says_why_it_needs_one() {
    let config = parse("[notify_kafka]\nbrokers = 'a'\ntopic = 't'\n", &[]);

    let expected = "queue_dir: not set: an event must be durable before it is answered; \
                    set queue_dir in the file or MINIO_NOTIFY_KAFKA_QUEUE_DIR";
    assert_eq!(the_problems(&config), [expected]);
}

#[test]
fn what_has_no_effect_is_taken_and_warned_of() {
    for (line, says) in [
        (
            "tls_client_auth = 4",
            "notify_kafka:primary: tls_client_auth = \"4\" (line 6): without effect: it is a policy",
        ),
        ("sasl_username = \"u\"", "sasl_username = \"u\" (line 6): without effect while sasl is off"),
        ("tls_ca = \"/ca\"", "without effect while tls is off"),
        ("compression_codec = \"snappy\"\ncompression_level = 3", "without effect: the codec has no levels"),
        (
            "acks = 1",
            "without effect: it stays at all, since with less, delivered events are lost when a broker fails",
        ),
    ] {
        let config = primary(line);

        the_target(&config);
        assert!(warnings(&config)[0].contains(says), "{line}: {:?}", warnings(&config));
    }
    assert!(warnings(&primary("tls_client_auth = 0")).is_empty());
}

#[test]
fn a_password_may_be_in_a_file_and_the_environment_wins_over_both_ways() {
    let sasl = "sasl = true\nsasl_username = \"u\"\n";
    let password = |config: &Config| the_target(config).sasl.clone().expect("on").password;

    let config = primary(&format!("{sasl}sasl_password_file = \"/run/secret\""));
    assert_eq!(password(&config), SecretSource::File("/run/secret".into()));
    let file = format!("{PRIMARY}{sasl}sasl_password = \"old\"");
    let config = parse(&file, &[("SASL_PASSWORD_FILE_primary", "/run/secret")]);
    assert_eq!(password(&config), SecretSource::File("/run/secret".into()));
    let both = primary(&format!("{sasl}sasl_password = \"a\"\nsasl_password_file = \"/b\""));
    assert!(the_problems(&both)[0].contains("set this or sasl_password, not both"));
}

#[test]
fn no_secret_is_ever_shown() {
    let broken = primary(
        "sasl = 1\nsasl_password = \"hunter2\"\nkafka.ssl.key.password = \"hunter2\"\nunknown = \"hunter2\"",
    );
    let off = primary("sasl_password = \"hunter2\"");
    let works = primary("sasl = 1\nsasl_username = \"u\"\nsasl_password = \"hunter2\"");
    let doubled = format!("{PRIMARY}sasl_password = \"hunter2\"\nsasl_password = \"hunter2\"");
    let error = Config::parse(Some(&doubled), []).expect_err("a doubled key is no TOML");

    for text in [
        format!("{broken:?}{}", the_problems(&broken).join("")),
        format!("{off:?}{}", warnings(&off).join("")),
    ] {
        assert!(text.contains("*****") && !text.contains("hunter2"), "{text}");
    }
    assert!(!format!("{works:?}{error:?}{error}").contains("hunter2"));
    assert_eq!(Key::SaslPassword.secrecy(), Secrecy::Secret);
}

#[test]
fn properties_of_librdkafka_pass_through_however_toml_spells_them() {
    let spellings = [
        "kafka.linger.ms = 20\nkafka.socket.keepalive.enable = true",
        "\"kafka.linger.ms\" = 20\n\"kafka.socket.keepalive.enable\" = \"true\"",
        "kafka = { \"linger.ms\" = 20, socket.keepalive.enable = true }",
        "[notify_kafka.primary.kafka]\nlinger.ms = \"20\"\nsocket.keepalive.enable = true",
    ];
    for spelling in spellings {
        let config = primary(spelling);
        let target = the_target(&config);

        let properties: Vec<_> =
            target.settings.properties().map(|(name, setting)| (name, setting.value())).collect();
        assert_eq!(properties, [("linger.ms", "20"), ("socket.keepalive.enable", "true")], "{spelling}");
    }
}

#[test]
fn the_default_target_has_keys_of_its_own_beside_named_targets() {
    let file = "[notify_kafka]\nbrokers = ['a:1', 'b']\ntopic = 't'\nqueue_dir = '/q'\n'kafka.linger.ms' = 1\n\
                [notify_kafka.kafka]\nbrokers = 'c'\ntopic = 'u'\nqueue_dir = '/q'\n";
    let config = parse(file, &[]);

    let arns: Vec<String> = config.arns().iter().map(ToString::to_string).collect();
    assert_eq!(arns, ["arn:minio:sqs::_:kafka", "arn:minio:sqs::kafka:kafka"]);
    assert_eq!(config.targets[0].brokers.len(), 2);
    assert_eq!(config.targets[0].settings.properties().count(), 1);
}

#[test]
fn an_identifier_that_could_leave_the_queue_dir_is_refused_by_name() {
    let file = format!("{PRIMARY}[notify_kafka.\"../x\"]\nbrokers = 'a'\n");
    let config = parse(&file, &[("ENABLE_a:b", "on"), ("ENABLE_", "on")]);

    assert_eq!(config.targets.len(), 1);
    let ids: Vec<_> = config.broken.iter().map(|target| target.id.as_str()).collect();
    assert_eq!(ids, ["", "../x", "a:b"]);
    assert!(config.broken[1].problems[0].to_string().contains("'/' at byte 2 of a target's identifier"));
}

#[test]
fn rules_are_read_with_their_defaults_and_match() {
    let file = format!(
        "{PRIMARY}\n[[rule]]\nbucket = 'images'\narn = 'arn:minio:sqs::primary:kafka'\nevents = ['put', 's3:ObjectRemoved:Delete']\n\
         prefix = 'photos/'\nsuffix = '.jpg'\n[[rule]]\nbucket = '*'\narn = 'arn:minio:sqs::primary:kafka'\n"
    );
    let config = parse(&file, &[]);
    let rules: Vec<_> = config.rules.iter().collect();

    assert!(
        rules[0].events.contains(EventName::ObjectRemovedDelete)
            && !rules[0].events.contains(EventName::ObjectRemovedNoOp)
    );
    assert_eq!(rules[0].pattern.to_string(), "photos/*.jpg");
    assert_eq!(rules[1].events, EventSet::default());
    assert_eq!(config.rules.matching("any", "key", EventName::ObjectCreatedPut).len(), 1);
    assert!(config.warnings.is_empty() && config.broken_rules.is_empty());
}

#[test]
fn a_broken_rule_says_everything_that_is_wrong_and_leaves_the_others() {
    let file = format!(
        "{PRIMARY}\n[[rule]]\narn = 'arn:minio:sqs:primary:kafka'\nevents = 'put,putt'\nsufix = '.jpg'\n\
         [[rule]]\nbucket = 'b'\narn = 'arn:minio:sqs::primary:kafka'\n"
    );
    let config = parse(&file, &[]);

    assert_eq!(config.rules.len(), 1);
    let problems: Vec<String> = config.broken_rules[0].problems.iter().map(Problem::to_string).collect();
    assert_eq!((config.broken_rules[0].line, problems.len()), (7, 4));
    assert_eq!(problems[0], "sufix (line 10): unknown key; did you mean suffix?");
    assert!(problems[1].starts_with("bucket: not set"));
    assert!(
        problems[2]
            .contains("(line 8): ARN \"arn:minio:sqs:primary:kafka\" is malformed at byte 27: 5 fields")
    );
    assert!(problems[3].contains("\"putt\" is no event name, did you mean \"put\"?"));
}

#[test]
fn a_rule_whose_target_does_not_exist_is_kept_and_warned_of_with_the_arns_that_exist() {
    let file = format!("{PRIMARY}\n[[rule]]\nbucket = 'b'\narn = 'arn:minio:sqs::gone:kafka'\n");
    let config = parse(&file, &[]);

    assert_eq!(config.rules.len(), 1);
    let expected = "rule at line 7: no target has the ARN arn:minio:sqs::gone:kafka; there is arn:minio:sqs::primary:kafka";
    assert_eq!(warnings(&config), [expected]);
    let target = config.rules.matching("b", "k", EventName::ObjectCreatedPut)[0];
    assert_eq!(config.target(target), None);
}

#[test]
fn the_region_stands_in_arns_and_a_rule_of_another_region_is_broken() {
    let rule =
        |region: &str| format!("[[rule]]\nbucket = 'b'\narn = 'arn:minio:sqs:{region}:primary:kafka'\n");
    let file = format!("region = 'eu-1'\n{PRIMARY}{}{}{}", rule(""), rule("eu-1"), rule("us-1"));
    let config = parse(&file, &[]);

    assert_eq!(config.arns()[0].to_string(), "arn:minio:sqs:eu-1:primary:kafka");
    assert_eq!((config.rules.len(), config.broken_rules.len()), (2, 1));
    let from_environment =
        Config::parse(Some(&file), [("MINIO_SITE_REGION".to_owned(), "us-1".to_owned())]).expect("TOML");
    assert_eq!(from_environment.region(), "us-1");
}

#[test]
fn an_unknown_table_of_the_file_is_a_problem_and_leaves_the_targets() {
    let config = parse(&format!("{PRIMARY}\n[notify_kafak.x]\na = 1\n"), &[]);

    the_target(&config);
    assert!(
        config.problems[0]
            .to_string()
            .starts_with("notify_kafak (line 7): unknown, did you mean notify_kafka?")
    );
}

#[test]
fn a_file_that_is_no_toml_is_an_error_with_line_and_column() {
    let error = Config::parse(Some("[notify_kafka]\ntopic = \n"), []).expect_err("no TOML");

    assert_eq!((error.line, error.column), (2, 9));
    assert!(error.to_string().starts_with("line 2, column 9: not TOML: "), "{error}");
}

#[test]
fn mechanisms_of_the_file_are_never_guessed() {
    let config = primary("sasl = 'on'\nsasl_username = 'u'\nsasl_password = 'p'");

    assert_eq!(the_target(&config).sasl.as_ref().map(|sasl| sasl.mechanism), Some(Mechanism::Plain));
}

proptest! {
    #[test]
    fn no_file_and_no_environment_is_too_odd_to_read(
        file in "(\\[\\[?(notify_kafka|rule)(\\.[a-z\"]{1,3})?\\]?\\]\n([a-z_.\"]{1,8} ?= ?[0-9a-z'\"\\[\\]{},.]{1,8}\n){0,4}){0,3}",
        variables in prop::collection::vec(("MINIO_NOTIFY_KAFKA_[A-Z_]{0,12}.{0,4}", ".{0,8}"), 0..6),
    ) {
        if let Ok(config) = Config::parse(Some(&file), variables.clone()) {
            let _ = format!("{config:?}");
        }
        let config = Config::parse(None, variables).expect("there is no file to be wrong");
        prop_assert!(config.rules.is_empty());
    }

    #[test]
    fn every_variable_is_used_or_named(id in "[a-zA-Z0-9_]{1,6}", key in 0..Key::ALL.len(), enable in any::<bool>()) {
        let id: tidegate_notify::TargetId = id.parse().expect("the pattern makes identifiers");
        let variable = Key::ALL[key].variable(&id);
        let mut environment = vec![(variable.clone(), "value".to_owned())];
        if enable {
            environment.push((Key::Enable.variable(&id), "on".to_owned()));
        }
        let config = Config::parse(None, environment).expect("no file");

        prop_assert!(format!("{config:?}").contains(&variable), "{config:?}");
    }
}
