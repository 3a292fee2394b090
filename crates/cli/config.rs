//! Configuration for a command: loaded, and everything said that a user should know of it.

use std::path::Path;

use tidegate::{Config, LoadError, load_config};

/// Loads the configuration and logs what is wrong with it, except for broken targets: whoever opens them says that.
pub(crate) fn load(file: Option<&Path>, overrides: &[(String, String)]) -> Result<Config, LoadError> {
    let config = load_config(file, overrides)?;
    for rule in &config.broken_rules {
        for problem in &rule.problems {
            tracing::error!("rule at line {}: {problem}", rule.line);
        }
    }
    for problem in &config.problems {
        tracing::error!("{problem}");
    }
    for disabled in &config.disabled {
        for problem in &disabled.problems {
            tracing::warn!("notify_kafka:{} (switched off): {problem}", disabled.id);
        }
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

/// Why each broken target is, for the one who will not open them.
pub(crate) fn broken(config: &Config) -> String {
    let lines = config.broken.iter().flat_map(|broken| {
        broken.problems.iter().map(|problem| format!("\n  notify_kafka:{}: {problem}", broken.id))
    });
    lines.collect()
}
