//! The configuration: targets and rules from one file and the environment, both handed in as text. One target's or
//! rule's mistake never hides another, and nothing that was written is passed over in silence.

mod environment;
mod file;
mod keys;
mod problem;
mod rule_table;
mod setting;
mod target;
mod values;

use std::collections::BTreeMap;

use crate::arn::{Arn, TargetId};
use crate::error::ConfigError;
use crate::rules::{Rule, Rules};
use environment::Environment;
use file::{File, FileTarget};

pub use keys::{Key, Secrecy};
pub use problem::{Problem, Warning};
pub use rule_table::BrokenRule;
pub use setting::{Secret, SecretSource, Setting, Settings, Source};
pub use target::{ClientTls, Compression, Sasl, TargetConfig, Tls};
pub use values::{Acks, Broker, Codec, Mechanism, Partitioner};

/// Everything that is configured, sorted by what works. Targets come in the order of their identifiers, rules in the
/// order of the file.
///
/// ```
/// use tidegate_notify::Config;
///
/// let file = r#"
///     [notify_kafka.primary]
///     brokers = ["10.0.0.1:9092", "10.0.0.2"]
///     topic = "bucket-events"
///     queue_dir = "/var/lib/tidegate"
///
///     [[rule]]
///     bucket = "images"
///     arn = "arn:minio:sqs::primary:kafka"
///     events = ["put", "delete"]
///     suffix = ".jpg"
/// "#;
/// let variable = ("MINIO_NOTIFY_KAFKA_TOPIC_primary".to_owned(), "other".to_owned());
/// let config = Config::parse(Some(file), [variable])?;
/// assert_eq!(config.targets[0].topic, "other");
/// assert_eq!(config.arns()[0].to_string(), "arn:minio:sqs::primary:kafka");
/// assert!(config.broken.is_empty() && config.warnings.is_empty());
/// # Ok::<(), tidegate_notify::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Config {
    region: String,
    /// The targets that are valid and switched on.
    pub targets: Vec<TargetConfig>,
    /// The targets that are switched on and cannot work.
    pub broken: Vec<BrokenTarget>,
    /// The targets that are switched off.
    pub disabled: Vec<DisabledTarget>,
    /// The rules that are valid, also those whose target does not work or does not exist.
    pub rules: Rules,
    /// The rules that are not valid.
    pub broken_rules: Vec<BrokenRule>,
    /// Problems of the file that belong to no target and no rule.
    pub problems: Vec<Problem>,
    /// What a user should know and keeps nothing from working.
    pub warnings: Vec<Warning>,
}

/// A target that is switched on and cannot work until its problems are mended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenTarget {
    /// The identifier as it was written; one of the problems may be that it is none.
    pub id: String,
    /// What is wrong, all of it.
    pub problems: Vec<Problem>,
    /// Everything as it was written.
    pub settings: Settings,
}

/// A target that is switched off. Its values are not checked, as nothing uses them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DisabledTarget {
    /// The identifier.
    pub id: TargetId,
    /// What is wrong in its table all the same: keys that do not exist.
    pub problems: Vec<Problem>,
    /// Everything as it was written.
    pub settings: Settings,
}

impl Config {
    /// Reads the file's text, if there is a file, and the environment's variables; a variable wins over the file, key
    /// by key, and an empty one is not set. A target is made by a table in the file, or by an `ENABLE` variable.
    ///
    /// # Errors
    /// [`ConfigError`] only if the file is no TOML at all. Everything else that is wrong is in the result, beside what
    /// works.
    pub fn parse(
        file_text: Option<&str>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let file = file_text.map(File::read).transpose()?.unwrap_or_default();
        let environment = Environment::read(environment);
        let mut config =
            Config { broken_rules: file.broken_rules, problems: file.problems, ..Config::default() };
        config.warnings = environment.warnings;
        config.set_region(environment.region.or(file.region));
        config.set_targets(file.targets, environment.targets);
        config.set_rules(file.rules);
        Ok(config)
    }

    /// The region in ARNs: `region` of the file, or `MINIO_SITE_REGION`, which wins; may be empty.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The ARNs of the targets that work, in the order of their identifiers. Whether a broker answers does not matter.
    #[must_use]
    pub fn arns(&self) -> Vec<Arn> {
        self.targets.iter().map(|target| self.arn(&target.id)).collect()
    }

    /// The ARN of a target.
    #[must_use]
    pub fn arn(&self, id: &TargetId) -> Arn {
        Arn::in_region(&self.region, id.clone())
    }

    /// A target that works, by its identifier.
    #[must_use]
    pub fn target(&self, id: &TargetId) -> Option<&TargetConfig> {
        self.targets.iter().find(|target| target.id == *id)
    }

    fn set_region(&mut self, region: Option<Setting>) {
        let Some(setting) = region else { return };
        match Arn::new(setting.value(), TargetId::default()) {
            Ok(arn) => arn.region().clone_into(&mut self.region),
            Err(error) => {
                self.problems.push(Problem::of_setting("region", &setting, error.reason.to_string()));
            }
        }
    }

    fn set_targets(
        &mut self,
        in_file: BTreeMap<String, FileTarget>,
        in_environment: BTreeMap<String, Settings>,
    ) {
        let mut orphans = Vec::new();
        let mut targets: BTreeMap<String, FileTarget> = in_file;
        for (id, settings) in in_environment {
            match targets.get_mut(&id) {
                Some(target) => target.settings.overlay(settings),
                None if settings.get(Key::Enable).is_some() => {
                    targets.insert(id, FileTarget { settings, problems: Vec::new() });
                }
                None => orphans.push((id, settings)),
            }
        }
        for (id, target) in targets {
            self.set_target(id, target);
        }
        for (id, settings) in orphans {
            self.warn_of_an_orphan(id, &settings);
        }
    }

    /// Puts a target where it belongs: it works, is switched off, or is broken.
    fn set_target(&mut self, text: String, FileTarget { settings, mut problems }: FileTarget) {
        let enable = settings.get(Key::Enable);
        let enabled = enable.map_or(Ok(true), |enable| values::switch(enable.value()));
        if let (Err(reason), Some(enable)) = (&enabled, enable) {
            problems.push(Problem::of_setting(Key::Enable.name(), enable, reason));
        }
        match text.parse::<TargetId>() {
            Err(error) => {
                problems.push(Problem::missing(format!("notify_kafka:{text}"), error.to_string()));
                self.broken.push(BrokenTarget { id: text, problems, settings });
            }
            Ok(id) if enabled == Ok(false) => self.disabled.push(DisabledTarget { id, problems, settings }),
            Ok(id) => match TargetConfig::read(&id, settings, problems) {
                Ok((target, warnings)) => {
                    self.targets.push(target);
                    self.warnings.extend(warnings);
                }
                Err((settings, problems)) => self.broken.push(BrokenTarget { id: text, problems, settings }),
            },
        }
    }

    fn warn_of_an_orphan(&mut self, id: String, settings: &Settings) {
        let similar = self.ids().find(|other| other.as_str().eq_ignore_ascii_case(&id)).cloned();
        let variables = settings.iter().map(|(_, setting)| setting.source().to_string()).collect();
        let enable = Key::Enable.variable_for(&id);
        self.warnings.push(Warning::OrphanVariables { id, variables, enable, similar });
    }

    /// The identifiers of the targets that work or are switched off.
    fn ids(&self) -> impl Iterator<Item = &TargetId> {
        self.targets.iter().map(|target| &target.id).chain(self.disabled.iter().map(|target| &target.id))
    }

    fn set_rules(&mut self, rules: Vec<(usize, Rule)>) {
        let mut kept = Vec::new();
        for (line, rule) in rules {
            if let Some(problem) = self.problem_of_region(&rule.arn) {
                self.broken_rules.push(BrokenRule { line, problems: vec![problem] });
            } else {
                self.warnings.extend(self.warning_of_target(line, &rule.arn));
                kept.push(rule);
            }
        }
        self.broken_rules.sort_by_key(|rule| rule.line);
        self.rules = kept.into_iter().collect();
    }

    /// A rule's ARN may leave the region out; one that it names must be ours, if we have one. As in the reference.
    fn problem_of_region(&self, arn: &Arn) -> Option<Problem> {
        let other = !arn.region().is_empty() && !self.region.is_empty() && arn.region() != self.region;
        let reason = format!("{arn} is of another region; here it is {}", self.arn(arn.id()));
        other.then(|| Problem::missing("arn", reason))
    }

    fn warning_of_target(&self, line: usize, arn: &Arn) -> Option<Warning> {
        let arn = arn.clone();
        if self.disabled.iter().any(|target| target.id == *arn.id()) {
            return Some(Warning::DisabledTarget { line, arn });
        }
        let is_broken = self.broken.iter().any(|target| target.id == arn.id().as_str());
        let exists = is_broken || self.target(arn.id()).is_some();
        (!exists).then(|| Warning::UnknownArn { line, arn, known: self.arns() })
    }
}
