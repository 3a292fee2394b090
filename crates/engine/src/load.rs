//! The one place that reads the environment and files of configuration: `tidegate.toml`, `MINIO_NOTIFY_KAFKA_*`, and
//! the files that hold secrets.

use std::io;
use std::path::{Path, PathBuf};

use tidegate_notify::Config;
use tidegate_notify::config::SecretSource;
use tidegate_notify::error::ConfigError;

/// Why there is no configuration at all. What is wrong with one target or rule is in the [`Config`], beside what works.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is no TOML.
    #[error("{}: {error}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: ConfigError,
    },
}

/// Reads the configuration: the file, if one is given, and this process's environment, which wins key by key.
/// `overrides` are variables that win over both.
///
/// # Errors
/// [`LoadError`] if the file cannot be read or is no TOML.
pub fn load_config(file: Option<&Path>, overrides: &[(String, String)]) -> Result<Config, LoadError> {
    let text = match file {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|error| LoadError::File { path: path.to_owned(), error })?,
        ),
        None => None,
    };
    // Names and values that are not UTF-8 are nobody's setting.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !overrides.iter().any(|(overridden, _)| overridden == name))
        .chain(overrides.iter().cloned());
    let path = || file.map(Path::to_owned).unwrap_or_default();
    Config::parse(text.as_deref(), environment).map_err(|error| LoadError::Toml { path: path(), error })
}

/// The secret itself; from its file, without the newline at its end.
pub(crate) fn secret(source: &SecretSource) -> Result<String, String> {
    match source {
        SecretSource::Inline(secret) => Ok(secret.expose().to_owned()),
        SecretSource::File(path) => std::fs::read_to_string(path)
            .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|error| format!("cannot read the secret in {}: {error}", path.display())),
        _ => Err("a secret from a source that this version does not know".to_owned()),
    }
}
