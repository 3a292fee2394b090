//! One `[[rule]]` of the file.

use toml_edit::{Item, TableLike};

use super::file::{Lines, text_of};
use super::problem::Problem;
use super::setting::{Setting, Source};
use crate::event_name::EventSet;
use crate::nearest::nearest;
use crate::pattern::KeyPattern;
use crate::rules::Rule;

/// A rule that does not work; the others do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenRule {
    /// Where it begins in the file.
    pub line: usize,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

const KEYS: [&str; 5] = ["bucket", "arn", "events", "prefix", "suffix"];

pub(super) fn read(table: &dyn TableLike, line: usize, lines: &Lines<'_>) -> Result<Rule, BrokenRule> {
    let mut reader = Reader { table, lines, problems: Vec::new() };
    reader.refuse_unknown_keys();
    let bucket = reader.required("bucket", "a bucket's name, or \"*\" for every bucket");
    let bucket = bucket.and_then(|setting| reader.parsed("bucket", &setting, str::parse));
    let arn = reader.required("arn", "the target's ARN, as arn:minio:sqs::primary:kafka");
    let arn = arn.and_then(|setting| reader.parsed("arn", &setting, str::parse));
    let events = match reader.text("events") {
        Some(setting) => reader.parsed("events", &setting, str::parse),
        None => Some(EventSet::default()),
    };
    let [prefix, suffix] = ["prefix", "suffix"].map(|key| reader.text(key));
    let text =
        |setting: &Option<Setting>| setting.as_ref().map(Setting::value).unwrap_or_default().to_owned();
    let pattern = KeyPattern::new(&text(&prefix), &text(&suffix));
    if let (Err(error), Some(setting)) = (&pattern, prefix.or(suffix)) {
        reader.problems.push(Problem::of_setting("prefix or suffix", &setting, error.to_string()));
    }

    match (bucket, arn, events, pattern) {
        (Some(bucket), Some(arn), Some(events), Ok(pattern)) if reader.problems.is_empty() => {
            Ok(Rule { bucket, arn, events, pattern })
        }
        _ => Err(BrokenRule { line, problems: reader.problems }),
    }
}

struct Reader<'t> {
    table: &'t dyn TableLike,
    lines: &'t Lines<'t>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn refuse_unknown_keys(&mut self) {
        for (name, _) in self.table.iter().filter(|(name, _)| !KEYS.contains(name)) {
            let hint = nearest(name, KEYS).map_or_else(
                || format!("a rule has {}", KEYS.join(", ")),
                |key| format!("did you mean {key}?"),
            );
            let line = self.lines.of_member(self.table, name);
            self.problems.push(Problem::at_line(name, line, format!("unknown key; {hint}")));
        }
    }

    fn text(&mut self, key: &'static str) -> Option<Setting> {
        let item: &Item = self.table.get(key)?;
        let line = self.lines.of_member(self.table, key);
        match text_of(item, key == "events") {
            Ok(text) => Some(Setting::of_property(key, text, Source::File { line })),
            Err(reason) => {
                self.problems.push(Problem::at_line(key, line, reason));
                None
            }
        }
    }

    fn required(&mut self, key: &'static str, expected: &str) -> Option<Setting> {
        if self.table.get(key).is_none() {
            self.problems.push(Problem::missing(key, format!("not set: every rule needs {expected}")));
        }
        self.text(key)
    }

    fn parsed<T, E: ToString>(
        &mut self,
        key: &'static str,
        setting: &Setting,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(setting.value()) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(Problem::of_setting(key, setting, error.to_string()));
                None
            }
        }
    }
}
