//! `tidegate.toml` into settings and rules. Walks the tables and says where each value stands; what the values mean is
//! for others to say. A wrong value spoils its own target or rule only.

use std::collections::BTreeMap;
use std::ops::Range;

use toml_edit::{Document, Item, TableLike, Value};

use super::keys::{Key, PROPERTY_PREFIX, owned_property};
use super::problem::Problem;
use super::rule_table::{self, BrokenRule};
use super::setting::{Setting, Settings, Source, property_key};
use crate::error::ConfigError;
use crate::nearest::nearest;
use crate::rules::Rule;

const TARGETS: &str = "notify_kafka";
const RULES: &str = "rule";
const REGION: &str = "region";

/// What the file says.
#[derive(Default)]
pub(super) struct File {
    pub(super) region: Option<Setting>,
    /// By the identifiers as they are written, which may be none.
    pub(super) targets: BTreeMap<String, FileTarget>,
    /// With the lines where they begin.
    pub(super) rules: Vec<(usize, Rule)>,
    pub(super) broken_rules: Vec<BrokenRule>,
    /// What belongs to no target and no rule.
    pub(super) problems: Vec<Problem>,
}

/// One target's table.
#[derive(Default)]
pub(super) struct FileTarget {
    pub(super) settings: Settings,
    pub(super) problems: Vec<Problem>,
}

impl File {
    pub(super) fn read(text: &str) -> Result<File, ConfigError> {
        let lines = Lines::of(text);
        // Only the parser's message: its full text repeats the line, which may hold a password.
        let document = Document::parse(text).map_err(|error| {
            let (line, column) = lines.place(error.span().map_or(0, |span| span.start));
            ConfigError { line, column, message: error.message().lines().collect::<Vec<_>>().join("; ") }
        })?;
        let mut file = File::default();
        for (name, item) in document.as_table() {
            let line = lines.of_member(document.as_table(), name);
            match name {
                TARGETS => file.read_targets(item, line, &lines),
                RULES => file.read_rules(item, line, &lines),
                REGION => file.read_region(item, line),
                _ => {
                    let meant = nearest(name, [TARGETS, RULES, REGION]);
                    let hint = meant.map_or_else(String::new, |meant| format!(", did you mean {meant}?"));
                    let reason =
                        format!("unknown{hint}; a file has [{TARGETS}.ID], [[{RULES}]] and {REGION}");
                    file.problems.push(Problem::at_line(name, line, reason));
                }
            }
        }
        Ok(file)
    }

    fn read_region(&mut self, item: &Item, line: usize) {
        match item.as_str() {
            Some(text) => {
                self.region = Some(Setting::of_property(REGION, text.to_owned(), Source::File { line }));
            }
            None => self.problems.push(Problem::at_line(REGION, line, "expected a string")),
        }
    }

    /// `[notify_kafka]`: tables in it are targets; what else it has belongs to the default target.
    fn read_targets(&mut self, item: &Item, line: usize, lines: &Lines<'_>) {
        let Some(table) = item.as_table_like() else {
            self.problems.push(Problem::at_line(TARGETS, line, "expected tables, as [notify_kafka.primary]"));
            return;
        };
        for (name, item) in table.iter() {
            let line = lines.of_member(table, name);
            match item.as_table_like() {
                Some(target_table) if !is_properties_of_the_default_target(name, item) => {
                    let target = self.targets.entry(name.to_owned()).or_default();
                    for (name, item) in target_table.iter() {
                        target.read_member(name, item, lines.of_member(target_table, name), lines);
                    }
                }
                _ => self.targets.entry("_".to_owned()).or_default().read_member(name, item, line, lines),
            }
        }
    }

    fn read_rules(&mut self, item: &Item, line: usize, lines: &Lines<'_>) {
        let tables: Option<Vec<(&dyn TableLike, usize)>> = match item {
            Item::ArrayOfTables(tables) => Some(
                tables.iter().map(|table| (table as &dyn TableLike, lines.of_span(table.span()))).collect(),
            ),
            Item::Value(Value::Array(items)) => items
                .iter()
                .map(|item| Some((item.as_inline_table()? as &dyn TableLike, lines.of_span(item.span()))))
                .collect(),
            _ => None,
        };
        let Some(tables) = tables else {
            self.problems.push(Problem::at_line(
                RULES,
                line,
                "expected rules, each under [[rule]] in double brackets",
            ));
            return;
        };
        for (table, line) in tables {
            match rule_table::read(table, line, lines) {
                Ok(rule) => self.rules.push((line, rule)),
                Err(broken) => self.broken_rules.push(broken),
            }
        }
    }
}

/// `kafka.linger.ms = 5` under `[notify_kafka]` is a property of the default target; `[notify_kafka.kafka]` is a target
/// with the identifier `kafka`.
fn is_properties_of_the_default_target(name: &str, item: &Item) -> bool {
    let written_as_a_table = item.as_table().is_some_and(|table| !table.is_dotted());
    format!("{name}.") == PROPERTY_PREFIX && !written_as_a_table
}

impl FileTarget {
    fn read_member(&mut self, name: &str, item: &Item, line: usize, lines: &Lines<'_>) {
        if let Some(key) = Key::named(name) {
            self.read_key(key, item, line);
        } else if let Some(property) = name.strip_prefix(PROPERTY_PREFIX) {
            self.read_property(property, item, line, lines);
        } else if format!("{name}.") == PROPERTY_PREFIX && item.is_table_like() {
            self.read_property("", item, line, lines);
        } else {
            let hint = Key::nearest(name).map_or_else(
                || format!("known are {}", Key::ALL.map(Key::name).join(", ")),
                |key| format!("did you mean {}?", key.name()),
            );
            self.problems.push(Problem::at_line(name, line, format!("unknown key; {hint}")));
        }
    }

    fn read_key(&mut self, key: Key, item: &Item, line: usize) {
        let source = Source::File { line };
        match text_of(item, key == Key::Brokers) {
            Ok(text) => {
                let setting = Setting::of_key(key, text.trim().to_owned(), source);
                if self.settings.set(key, setting.clone()).is_some() {
                    self.problems.push(Problem::of_setting(
                        key.name(),
                        &setting,
                        "set twice for this target",
                    ));
                }
            }
            Err(reason) => self.problems.push(Problem::at_line(key.name(), line, reason)),
        }
    }

    /// A property of librdkafka, or a table of them: dots in a name are tables to TOML.
    fn read_property(&mut self, name: &str, item: &Item, line: usize, lines: &Lines<'_>) {
        if let Some(table) = item.as_table_like() {
            let joined =
                |last: &str| if name.is_empty() { last.to_owned() } else { format!("{name}.{last}") };
            for (last, item) in table.iter() {
                self.read_property(&joined(last), item, lines.of_member(table, last), lines);
            }
            return;
        }
        let key = property_key(name);
        if let Some(instead) = owned_property(name) {
            let reason = format!("the engine sets this property itself; use {instead}");
            self.problems.push(Problem::at_line(key, line, reason));
            return;
        }
        match text_of(item, false) {
            Ok(text) => {
                let setting = Setting::of_property(name, text, Source::File { line });
                if self.settings.set_property(name, setting.clone()).is_some() {
                    self.problems.push(Problem::of_setting(key, &setting, "set twice for this target"));
                }
            }
            Err(reason) => self.problems.push(Problem::at_line(key, line, reason)),
        }
    }
}

/// A value as text; the text is read by what reads variables too.
pub(super) fn text_of(item: &Item, list_allowed: bool) -> Result<String, &'static str> {
    match item.as_value() {
        Some(Value::String(text)) => Ok(text.value().clone()),
        Some(Value::Integer(number)) => Ok(number.value().to_string()),
        Some(Value::Float(number)) => Ok(number.value().to_string()),
        Some(Value::Boolean(switch)) => Ok(switch.value().to_string()),
        Some(Value::Array(items)) if list_allowed => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            texts.map(|texts| texts.join(",")).ok_or("expected strings in the array")
        }
        _ if list_allowed => Err("expected a string or an array of strings"),
        _ => Err("expected a string, a number, true or false"),
    }
}

/// The lines of the file, to turn byte positions into numbers of lines.
pub(super) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Lines<'t> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text, starts }
    }

    /// Line and column of a byte position, counted from 1; the column in characters.
    fn place(&self, position: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= position);
        let start = self.starts[line - 1];
        (line, self.text.get(start..position).map_or(1, |before| before.chars().count() + 1))
    }

    pub(super) fn of_span(&self, span: Option<Range<usize>>) -> usize {
        self.place(span.map_or(0, |span| span.start)).0
    }

    /// The line where a member's name stands.
    pub(super) fn of_member(&self, table: &dyn TableLike, name: &str) -> usize {
        let spans = table.get_key_value(name).map(|(key, item)| key.span().or_else(|| item.span()));
        self.of_span(spans.flatten())
    }
}
