//! What can be wrong with text that a user or a sender gave: one enum for each thing that is parsed. Every variant
//! carries the facts (what was met, where, what was expected), so that a message alone is enough to mend the input.

use crate::event_name::EventName;

/// Why a text is not the identifier of a target. Choose another identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetIdError {
    /// No text at all.
    #[error("a target's identifier is empty; leave it out, or write `_`, for the default target")]
    Empty,
    /// Longer than any file name it must become part of.
    #[error("a target's identifier of {bytes} bytes is too long: at most {max} are taken")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The longest that is taken.
        max: usize,
    },
    /// A character that would break ARNs, paths or listings.
    #[error(
        "{character:?} at byte {position} of a target's identifier: `:`, `/`, `\\` and control characters are not taken"
    )]
    Character {
        /// The character.
        character: char,
        /// Its byte position in the identifier.
        position: usize,
    },
    /// `.` or `..`, which are directories.
    #[error("{id:?} is the name of a directory and not taken as a target's identifier")]
    Dots {
        /// `.` or `..`.
        id: String,
    },
}

/// Why a text is not an ARN. That no target has an ARN is another matter: see
/// [`Warning::UnknownArn`](crate::config::Warning::UnknownArn).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ARN {arn:?} is malformed at byte {position}: {reason}")]
pub struct ArnError {
    /// The text.
    pub arn: String,
    /// The byte position where it stops being an ARN.
    pub position: usize,
    /// What is wrong there.
    pub reason: ArnProblem,
}

/// What is wrong with an ARN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArnProblem {
    /// One of the fixed fields differs.
    #[error("expected {expected:?}, found {found:?}; an ARN reads arn:minio:sqs:REGION:ID:kafka")]
    Field {
        /// What must stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// Fewer or more than six fields.
    #[error("{found} fields, expected 6: arn:minio:sqs:REGION:ID:kafka")]
    Fields {
        /// How many fields there are.
        found: usize,
    },
    /// The region has a character that no region has.
    #[error("{character:?} in the region: letters, digits, `-`, `_` and `.` are taken")]
    Region {
        /// The character.
        character: char,
    },
    /// The identifier is none.
    #[error(transparent)]
    Id(#[from] TargetIdError),
}

/// A text that names no event. Names are case-sensitive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no event name{}; accepted are {accepted}", suggested(*suggestion))]
pub struct EventNameError {
    /// The text that was met.
    pub text: String,
    /// The accepted name nearest to it, if one is near.
    pub suggestion: Option<&'static str>,
    /// Every accepted text, comma-separated.
    pub accepted: String,
}

fn suggested(suggestion: Option<&'static str>) -> String {
    suggestion.map_or_else(String::new, |name| format!(", did you mean {name:?}?"))
}

/// Why a prefix, a suffix or a bucket pattern is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// Longer than any object key, so it could never match.
    #[error("{part} of {bytes} bytes: an object key has at most {max}, so it would never match")]
    TooLong {
        /// `prefix`, `suffix` or `bucket`.
        part: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The longest that is taken.
        max: usize,
    },
    /// A bucket pattern without text.
    #[error("bucket is empty; write a bucket's name, or \"*\" for every bucket")]
    EmptyBucket,
    /// A character that no bucket's name has.
    #[error(
        "{character:?} in bucket pattern {pattern:?}: no bucket's name has it, and only `*` stands for others"
    )]
    BucketCharacter {
        /// The character.
        character: char,
        /// The whole pattern.
        pattern: String,
    },
}

/// Why bytes are not an envelope. All of them are the sender's to mend; nothing of the body was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// A byte sequence that is not UTF-8.
    #[error("not UTF-8 at byte {position}: JSON is UTF-8 text")]
    Utf8 {
        /// Where the first wrong byte is.
        position: usize,
    },
    /// Not JSON.
    #[error("not JSON at byte {position}: found {found}, expected {expected}")]
    Json {
        /// Where it stops being JSON.
        position: usize,
        /// What stands there.
        found: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// Text after the end of the value.
    #[error(
        "text after the end of the envelope at byte {position}: one envelope a body, or one a line as NDJSON"
    )]
    Trailing {
        /// Where the first byte too many is.
        position: usize,
    },
    /// Arrays and objects inside one another, deeper than the limit.
    #[error("nested deeper than {max} at byte {position}")]
    TooDeep {
        /// Where the limit is passed.
        position: usize,
        /// The limit: [`Envelope::DEPTH_MAX`](crate::Envelope::DEPTH_MAX).
        max: usize,
    },
    /// A member that every envelope has is not there.
    #[error(
        "no member {member:?}: an envelope is {{\"EventName\":\"s3:...\",\"Key\":\"bucket/object\",\"Records\":[...]}}"
    )]
    Missing {
        /// `EventName`, `Key` or `Records`.
        member: &'static str,
    },
    /// A member of the envelope is there twice, so that two readers could see two events.
    #[error("second member {member:?} at byte {position}")]
    Duplicate {
        /// `EventName`, `Key` or `Records`.
        member: &'static str,
        /// Where the second one begins.
        position: usize,
    },
    /// A member has the wrong type.
    #[error("{member} at byte {position} is {found}, expected {expected}")]
    Type {
        /// `EventName`, `Key` or `Records`.
        member: &'static str,
        /// Where its value begins.
        position: usize,
        /// What it is.
        found: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A string with an escape that is no character: half of a surrogate pair.
    #[error("{member} at byte {position} has an escape that is no character: half of a surrogate pair")]
    Surrogate {
        /// `EventName` or `Key`.
        member: &'static str,
        /// Where the string begins.
        position: usize,
    },
    /// An event that is not known.
    #[error("EventName at byte {position}: {error}")]
    EventName {
        /// Where the string begins.
        position: usize,
        /// What was met and what is accepted.
        error: EventNameError,
    },
    /// A key without a bucket, or without an object where the event needs one.
    #[error("Key {key:?} at byte {position}: {problem}, expected \"bucket/object\"")]
    Key {
        /// Where the string begins.
        position: usize,
        /// The key, decoded.
        key: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Why an [`Event`](crate::Event) could not be built. A mistake of the calling program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// An empty bucket, or one with a `/`.
    #[error("bucket {bucket:?} is not a bucket's name: it is empty or has a `/`")]
    Bucket {
        /// The text.
        bucket: String,
    },
    /// An event about an object, without an object.
    #[error("{name} is about an object, and the key is empty")]
    EmptyKey {
        /// The event's name.
        name: EventName,
    },
    /// A time that the record's format cannot write.
    #[error("event time {event_time_ms} ms is outside of the years 0000 to 9999")]
    Time {
        /// Milliseconds since the Unix epoch.
        event_time_ms: i64,
    },
}

/// The file as a whole could not be read: no target and no rule of it is known. Keep what is in force, and mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: not TOML: {message}")]
pub struct ConfigError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// What the TOML parser says.
    pub message: String,
}
