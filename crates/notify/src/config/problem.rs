//! What is wrong with a configuration: a `Problem` keeps a target or a rule from working, a `Warning` does not. Both
//! name the key or variable and say what to do; secrets in them are masked.

use std::fmt;

use super::setting::{Setting, Source};
use crate::arn::{Arn, TargetId};

/// One thing that must be mended before a target or a rule works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The key as it is written in the file.
    pub key: String,
    /// Where the value came from.
    pub source: Source,
    /// The value, masked if it is secret; `None` if there is none.
    pub value: Option<String>,
    /// What is wrong, what was expected, and what to do.
    pub reason: String,
}

/// How much of a wrong value is repeated in a problem.
const VALUE_CHARACTERS_MAX: usize = 200;

impl Problem {
    pub(super) fn of_setting(
        key: impl Into<String>,
        setting: &Setting,
        reason: impl Into<String>,
    ) -> Problem {
        let value = setting.shown().chars().take(VALUE_CHARACTERS_MAX).collect();
        Problem {
            key: key.into(),
            source: setting.source().clone(),
            value: Some(value),
            reason: reason.into(),
        }
    }

    /// A problem of a place in the file that has no value worth showing, or one that may be secret.
    pub(super) fn at_line(key: impl Into<String>, line: usize, reason: impl Into<String>) -> Problem {
        Problem { key: key.into(), source: Source::File { line }, value: None, reason: reason.into() }
    }

    /// A key that must be set and is not.
    pub(super) fn missing(key: impl Into<String>, reason: impl Into<String>) -> Problem {
        Problem { key: key.into(), source: Source::Default, value: None, reason: reason.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(value) = &self.value {
            write!(f, " = {value:?}")?;
        }
        if self.source != Source::Default {
            write!(f, " ({})", self.source)?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for Problem {}

/// Something that a user should know, and that keeps nothing from working.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// Variables for a target that neither the file nor an `ENABLE` variable makes.
    #[error("{} set, but no target {id:?} exists: set {enable}=on{}", .variables.join(", "), spelt_alike(.similar.as_ref()))]
    OrphanVariables {
        /// The target's identifier, as the variables spell it.
        id: String,
        /// The variables.
        variables: Vec<String>,
        /// The variable that would make the target.
        enable: String,
        /// A target whose identifier differs only in case.
        similar: Option<TargetId>,
    },
    /// A variable with the prefix of our variables and no key of ours.
    #[error("{variable} is set and names no key{}", meant(.suggestion.as_deref()))]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// The variable that was probably meant.
        suggestion: Option<String>,
    },
    /// A value that is taken and changes nothing, or less than its user may think.
    #[error("notify_kafka:{id}: {problem}")]
    Setting {
        /// The target.
        id: TargetId,
        /// The key, the value, where it came from, and why it is worth a warning.
        problem: Problem,
    },
    /// A rule whose ARN no target has. The rule is kept; events that only it matches count as unmatched.
    #[error("rule at line {line}: no target has the ARN {arn}; {}", known_arns(.known))]
    UnknownArn {
        /// Where the rule is in the file.
        line: usize,
        /// The rule's ARN.
        arn: Arn,
        /// The ARNs that there are.
        known: Vec<Arn>,
    },
    /// A rule whose target is switched off. The rule is kept; events that only it matches count as unmatched.
    #[error("rule at line {line}: the target of {arn} is switched off")]
    DisabledTarget {
        /// Where the rule is in the file.
        line: usize,
        /// The rule's ARN.
        arn: Arn,
    },
}

fn spelt_alike(similar: Option<&TargetId>) -> String {
    let hint =
        |id: &TargetId| format!(", or spell it as the target {id:?} is spelt: case counts", id = id.as_str());
    similar.map_or_else(String::new, hint)
}

fn meant(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |variable| format!("; did you mean {variable}?"))
}

fn known_arns(known: &[Arn]) -> String {
    if known.is_empty() {
        return "there is no target".to_owned();
    }
    let known: Vec<String> = known.iter().map(Arn::to_string).collect();
    format!("there is {}", known.join(", "))
}
