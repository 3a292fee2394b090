//! Variables into settings. The process's environment is not read here: the caller hands it in.

use std::collections::BTreeMap;

use super::keys::{Key, VARIABLE_PREFIX};
use super::problem::Warning;
use super::setting::{Setting, Settings, Source};

/// What the environment says: settings by the identifiers as the variables spell them, which may be no identifiers.
#[derive(Default)]
pub(super) struct Environment {
    pub(super) targets: BTreeMap<String, Settings>,
    pub(super) region: Option<Setting>,
    pub(super) warnings: Vec<Warning>,
}

/// The reference's variable for the region of the service, which stands in its ARNs.
const REGION_VARIABLE: &str = "MINIO_SITE_REGION";

impl Environment {
    /// Reads names and values; others than ours are passed over. White space around a value does not count, and a
    /// value that is empty then is not set.
    pub(super) fn read(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        let mut environment = Environment::default();
        // Sorted, so that warnings come in the same order each time.
        for (variable, value) in variables.into_iter().collect::<BTreeMap<_, _>>() {
            environment.read_one(variable, value.trim());
        }
        environment
    }

    fn read_one(&mut self, variable: String, value: &str) {
        if value.is_empty() {
            return;
        }
        if variable == REGION_VARIABLE {
            let source = Source::Environment { variable };
            self.region = Some(Setting::of_property("region", value.to_owned(), source));
            return;
        }
        let Some(rest) = variable.strip_prefix(VARIABLE_PREFIX) else { return };
        if let Some((key, id)) = Key::of_variable(rest) {
            let settings = self.targets.entry(id.to_owned()).or_default();
            settings.set(key, Setting::of_key(key, value.to_owned(), Source::Environment { variable }));
        } else {
            let suggestion = Key::nearest_variable(rest);
            self.warnings.push(Warning::UnknownVariable { variable, suggestion });
        }
    }
}
