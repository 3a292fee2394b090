//! The names of targets: `TargetId`, as a user writes it, and `Arn`, as a rule refers to it. Both are parsed once and
//! then trusted: an identifier can become a directory's name, a metric's label or a field of an ARN as it stands.

use std::fmt;
use std::str::FromStr;

use crate::error::{ArnError, ArnProblem, TargetIdError};

/// The identifier of a target: `primary` in `[notify_kafka.primary]`. Case-sensitive, as in the reference.
///
/// 1 to [`BYTES_MAX`](TargetId::BYTES_MAX) bytes without `:`, `/`, `\` and control characters, and not `.` or `..`.
/// [`TargetId::default`] is the target without an identifier, `_`.
///
/// ```
/// use tidegate_notify::TargetId;
///
/// let id: TargetId = "primary".parse()?;
/// assert_eq!(id.as_str(), "primary");
/// assert!("../x".parse::<TargetId>().is_err());
/// # Ok::<(), tidegate_notify::error::TargetIdError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(String);

impl TargetId {
    /// The longest identifier, in bytes. It must fit into a file name with room for a prefix and a hash.
    pub const BYTES_MAX: usize = 128;

    /// The identifier's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the target without an identifier, `_`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0 == "_"
    }
}

impl Default for TargetId {
    fn default() -> TargetId {
        TargetId("_".to_owned())
    }
}

impl FromStr for TargetId {
    type Err = TargetIdError;

    fn from_str(id: &str) -> Result<TargetId, TargetIdError> {
        if id.is_empty() {
            return Err(TargetIdError::Empty);
        }
        if id.len() > TargetId::BYTES_MAX {
            return Err(TargetIdError::TooLong { bytes: id.len(), max: TargetId::BYTES_MAX });
        }
        if id == "." || id == ".." {
            return Err(TargetIdError::Dots { id: id.to_owned() });
        }
        match id.char_indices().find(|(_, c)| matches!(c, ':' | '/' | '\\') || c.is_control()) {
            Some((position, character)) => Err(TargetIdError::Character { character, position }),
            None => Ok(TargetId(id.to_owned())),
        }
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name by which rules refer to a target: `arn:minio:sqs:REGION:ID:kafka`. The region may be empty.
///
/// ```
/// use tidegate_notify::Arn;
///
/// let arn: Arn = "arn:minio:sqs::primary:kafka".parse()?;
/// assert_eq!(arn.id().as_str(), "primary");
/// assert_eq!(arn.to_string(), "arn:minio:sqs::primary:kafka");
/// # Ok::<(), tidegate_notify::error::ArnError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arn {
    region: String,
    id: TargetId,
}

/// The fields that never change, with their place.
const FIXED: [(usize, &str); 4] = [(0, "arn"), (1, "minio"), (2, "sqs"), (5, "kafka")];
const FIELDS: usize = 6;

impl Arn {
    /// The ARN of a target. `region` is `""` for a service without one.
    ///
    /// # Errors
    /// [`ArnError`] if the region has a character other than letters, digits, `-`, `_` and `.`.
    pub fn new(region: &str, id: TargetId) -> Result<Arn, ArnError> {
        match bad_region_character(region) {
            None => Ok(Arn::in_region(region, id)),
            Some((at, character)) => Err(ArnError {
                arn: format!("arn:minio:sqs:{region}:{id}:kafka"),
                position: "arn:minio:sqs:".len() + at,
                reason: ArnProblem::Region { character },
            }),
        }
    }

    /// The ARN of a target in a region that another ARN has had.
    pub(crate) fn in_region(region: &str, id: TargetId) -> Arn {
        Arn { region: region.to_owned(), id }
    }

    /// The region; may be empty.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The target's identifier.
    #[must_use]
    pub fn id(&self) -> &TargetId {
        &self.id
    }
}

fn bad_region_character(region: &str) -> Option<(usize, char)> {
    region.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
}

impl FromStr for Arn {
    type Err = ArnError;

    fn from_str(arn: &str) -> Result<Arn, ArnError> {
        let malformed = |position, reason| ArnError { arn: arn.to_owned(), position, reason };
        let fields: Vec<&str> = arn.split(':').collect();
        let position_of =
            |field: usize| fields.iter().take(field).map(|text| text.len() + 1).sum::<usize>().min(arn.len());

        for (field, expected) in FIXED {
            // The count comes before the last field, so that a missing region is not taken for a wrong type.
            if field == FIELDS - 1 && fields.len() != FIELDS {
                let reason = ArnProblem::Fields { found: fields.len() };
                return Err(malformed(position_of(FIELDS.min(fields.len())), reason));
            }
            let found = fields.get(field).copied().unwrap_or_default();
            if found != expected {
                let reason = ArnProblem::Field { expected, found: found.to_owned() };
                return Err(malformed(position_of(field), reason));
            }
        }
        let (region, id) = (fields[3], fields[4]);
        if let Some((at, character)) = bad_region_character(region) {
            return Err(malformed(position_of(3) + at, ArnProblem::Region { character }));
        }
        let id = id.parse().map_err(|reason| malformed(position_of(4), ArnProblem::Id(reason)))?;
        Ok(Arn { region: region.to_owned(), id })
    }
}

impl fmt::Display for Arn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arn:minio:sqs:{}:{}:kafka", self.region, self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_target_has_an_underscore_for_an_identifier() {
        let arn = Arn::new("", TargetId::default()).expect("an empty region is one");

        assert_eq!(arn.to_string(), "arn:minio:sqs::_:kafka");
        assert!(arn.id().is_default());
    }

    #[test]
    fn an_identifier_that_would_leave_its_directory_or_break_an_arn_is_refused() {
        for id in ["", ".", "..", "../x", "a/b", "a\\b", "a:b", "a\0b", "a\nb", &"x".repeat(129)] {
            assert!(id.parse::<TargetId>().is_err(), "{id:?}");
        }
        for id in ["_", "1", "PRIMARY", "a b", "世界", "...", &"x".repeat(128)] {
            assert_eq!(id.parse::<TargetId>().expect(id).as_str(), id);
        }
    }

    #[test]
    fn a_malformed_arn_is_named_with_the_position_and_the_reason() {
        let cases = [
            ("", 0, "expected \"arn\""),
            ("arn:aws:sqs::a:kafka", 4, "expected \"minio\""),
            ("arn:minio:sns::a:kafka", 10, "expected \"sqs\""),
            ("arn:minio:sqs::a:webhook", 17, "expected \"kafka\""),
            ("arn:minio:sqs:a:kafka", 21, "5 fields"),
            ("arn:minio:sqs::a:b:kafka", 19, "7 fields"),
            ("arn:minio:sqs:::kafka", 15, "identifier is empty"),
            ("arn:minio:sqs:é:a:kafka", 14, "in the region"),
            (" arn:minio:sqs::a:kafka", 0, "expected \"arn\""),
        ];
        for (text, position, says) in cases {
            let error = text.parse::<Arn>().expect_err(text);

            assert_eq!(error.position, position, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_arn_reads_back_as_it_was_written(region in "[a-z0-9-]{0,12}", id in "[^:/\\\\\\p{Cc}]{1,20}") {
            prop_assume!(id != "." && id != ".." && id.len() <= TargetId::BYTES_MAX);
            let arn = Arn::new(&region, id.parse().expect("the pattern makes identifiers")).expect("a region");

            prop_assert_eq!(arn.to_string().parse::<Arn>(), Ok(arn));
        }

        #[test]
        fn whatever_parses_as_an_arn_prints_as_the_same_text(text in "(arn:minio:sqs:)?.{0,30}(:kafka)?") {
            if let Ok(arn) = text.parse::<Arn>() {
                prop_assert_eq!(arn.to_string(), text);
            }
        }
    }
}
