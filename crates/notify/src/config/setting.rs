//! Values as they were written, with where each came from. What is secret is masked in everything but `value()`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::keys::{Key, PROPERTY_PREFIX, Secrecy, is_secret_property};

/// What stands in the place of a secret.
pub(crate) const MASK: &str = "*****";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// An environment variable; it wins over the file.
    Environment {
        /// The variable's name.
        variable: String,
    },
    /// The file.
    File {
        /// The line, counted from 1.
        line: usize,
    },
    /// Nothing was set.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Environment { variable } => f.write_str(variable),
            Source::File { line } => write!(f, "line {line}"),
            Source::Default => f.write_str("default"),
        }
    }
}

/// One value as it was written. `Debug` and [`shown`](Setting::shown) mask secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    text: String,
    secret: bool,
    source: Source,
}

impl Setting {
    pub(super) fn of_key(key: Key, text: String, source: Source) -> Setting {
        Setting { text, secret: key.secrecy() == Secrecy::Secret, source }
    }

    pub(super) fn of_property(name: &str, text: String, source: Source) -> Setting {
        Setting { text, secret: is_secret_property(name), source }
    }

    /// The text, also of a secret. Not for listings, logs or errors.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.text
    }

    /// The text for people: `*****` for a secret.
    #[must_use]
    pub fn shown(&self) -> &str {
        if self.secret { MASK } else { &self.text }
    }

    /// Where it came from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.shown(), self.source)
    }
}

/// Everything that is set for one target, environment over file. Empty values are not set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    keys: BTreeMap<Key, Setting>,
    properties: BTreeMap<String, Setting>,
}

impl Settings {
    /// What is set for a key.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&Setting> {
        self.keys.get(&key)
    }

    /// The keys that are set, in the order in which they are shown.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Setting)> {
        self.keys.iter().map(|(key, setting)| (*key, setting))
    }

    /// The properties that are passed through to librdkafka, by their names there.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.properties.iter().map(|(name, setting)| (name.as_str(), setting))
    }

    /// Sets a key; gives back what was set before. An empty text sets nothing.
    pub(super) fn set(&mut self, key: Key, setting: Setting) -> Option<Setting> {
        if setting.value().is_empty() { None } else { self.keys.insert(key, setting) }
    }

    pub(super) fn set_property(&mut self, name: &str, setting: Setting) -> Option<Setting> {
        self.properties.insert(name.to_owned(), setting)
    }

    /// Lays `over` over this: key by key, `over` wins.
    pub(super) fn overlay(&mut self, over: Settings) {
        self.keys.extend(over.keys);
        self.properties.extend(over.properties);
    }
}

/// The full name of a passed-through property in the file.
pub(super) fn property_key(name: &str) -> String {
    format!("{PROPERTY_PREFIX}{name}")
}

/// A text that is never shown: `Debug` masks it, and there is no `Display`.
///
/// ```
/// use tidegate_notify::config::Secret;
///
/// let secret = Secret::new("hunter2");
/// assert_eq!(format!("{secret:?}"), "*****");
/// assert_eq!(secret.expose(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text, for the one who must have it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Where a secret is: in the configuration, or in a file that the caller reads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretSource {
    /// Given in the configuration.
    Inline(Secret),
    /// The absolute path of a file that holds it; a newline at its end does not count.
    File(PathBuf),
}
