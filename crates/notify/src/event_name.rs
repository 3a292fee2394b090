//! What happened: the 32 event names of the reference, and sets of them. One table (`EventName` below) gives the
//! variants, the texts and the bits; compounds and aliases are ranges or lists over it.

use std::fmt;
use std::str::FromStr;

use crate::error::EventNameError;
use crate::nearest::nearest;

macro_rules! event_names {
    ($($variant:ident $text:literal)*) => {
        /// What happened to an object or a bucket. Case-sensitive; the text is the one of the reference, which differs
        /// from AWS for tags and lifecycle.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "each variant is its name, and as_str() gives the text")]
        pub enum EventName { $($variant,)* }

        impl EventName {
            /// Every name, in the order of the reference's bits.
            pub const ALL: [EventName; [$($text),*].len()] = [$(EventName::$variant),*];

            /// The name as it stands in a record: `s3:ObjectCreated:Put`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(EventName::$variant => $text,)* }
            }
        }
    };
}

event_names! {
    ObjectAccessedGet "s3:ObjectAccessed:Get"
    ObjectAccessedGetRetention "s3:ObjectAccessed:GetRetention"
    ObjectAccessedGetLegalHold "s3:ObjectAccessed:GetLegalHold"
    ObjectAccessedHead "s3:ObjectAccessed:Head"
    ObjectAccessedAttributes "s3:ObjectAccessed:Attributes"
    ObjectCreatedCompleteMultipartUpload "s3:ObjectCreated:CompleteMultipartUpload"
    ObjectCreatedCopy "s3:ObjectCreated:Copy"
    ObjectCreatedPost "s3:ObjectCreated:Post"
    ObjectCreatedPut "s3:ObjectCreated:Put"
    ObjectCreatedPutRetention "s3:ObjectCreated:PutRetention"
    ObjectCreatedPutLegalHold "s3:ObjectCreated:PutLegalHold"
    ObjectCreatedPutTagging "s3:ObjectCreated:PutTagging"
    ObjectCreatedDeleteTagging "s3:ObjectCreated:DeleteTagging"
    ObjectRemovedDelete "s3:ObjectRemoved:Delete"
    ObjectRemovedDeleteMarkerCreated "s3:ObjectRemoved:DeleteMarkerCreated"
    ObjectRemovedDeleteAllVersions "s3:ObjectRemoved:DeleteAllVersions"
    ObjectRemovedNoOp "s3:ObjectRemoved:NoOP"
    BucketCreated "s3:BucketCreated:*"
    BucketRemoved "s3:BucketRemoved:*"
    ReplicationFailed "s3:Replication:OperationFailedReplication"
    ReplicationCompleted "s3:Replication:OperationCompletedReplication"
    ReplicationMissedThreshold "s3:Replication:OperationMissedThreshold"
    ReplicationReplicatedAfterThreshold "s3:Replication:OperationReplicatedAfterThreshold"
    ReplicationNotTracked "s3:Replication:OperationNotTracked"
    ObjectRestorePost "s3:ObjectRestore:Post"
    ObjectRestoreCompleted "s3:ObjectRestore:Completed"
    ObjectTransitionFailed "s3:ObjectTransition:Failed"
    ObjectTransitionComplete "s3:ObjectTransition:Complete"
    ScannerManyVersions "s3:Scanner:ManyVersions"
    ScannerLargeVersions "s3:Scanner:LargeVersions"
    ScannerBigPrefix "s3:Scanner:BigPrefix"
    LifecycleDelMarkerExpirationDelete "s3:LifecycleDelMarkerExpiration:Delete"
}

/// How much of a wrong text is repeated in the error: enough to recognise it, and no more.
const TEXT_CHARACTERS_MAX: usize = 128;

/// The compounds: every name with this beginning. `s3:Scanner:*` is ours; the reference has the group but not the text.
const COMPOUNDS: [&str; 7] = [
    "s3:ObjectAccessed:*",
    "s3:ObjectCreated:*",
    "s3:ObjectRemoved:*",
    "s3:Replication:*",
    "s3:ObjectRestore:*",
    "s3:ObjectTransition:*",
    "s3:Scanner:*",
];

/// The aliases of the command line, with the texts that they stand for. `scanner` leaves out `LargeVersions`, as in the
/// reference.
const ALIASES: [(&str, &[&str]); 6] = [
    ("put", &["s3:ObjectCreated:*"]),
    ("delete", &["s3:ObjectRemoved:*"]),
    ("get", &["s3:ObjectAccessed:*"]),
    ("replica", &["s3:Replication:*"]),
    ("ilm", &["s3:ObjectRestore:*", "s3:ObjectTransition:*"]),
    ("scanner", &["s3:Scanner:ManyVersions", "s3:Scanner:BigPrefix"]),
];

impl EventName {
    /// Whether the event is about a bucket as a whole, so that its key may have no object.
    #[must_use]
    pub const fn is_bucket_event(self) -> bool {
        matches!(self, EventName::BucketCreated | EventName::BucketRemoved)
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl FromStr for EventName {
    type Err = EventNameError;

    /// Takes the exact name of one event; no compound, no alias.
    fn from_str(text: &str) -> Result<EventName, EventNameError> {
        let found = EventName::ALL.into_iter().find(|name| name.as_str() == text);
        found.ok_or_else(|| unknown(text, &EventName::ALL.map(EventName::as_str)))
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of event names: what a rule listens for. The default is `put,delete,get`, as on the reference's command line.
///
/// Reads full names, compounds (`s3:ObjectCreated:*`) and aliases (`put`, `delete`, `get`, `replica`, `ilm`,
/// `scanner`) from a comma list, with or without spaces; prints full names.
///
/// ```
/// use tidegate_notify::{EventName, EventSet};
///
/// let events: EventSet = "delete, s3:ObjectCreated:Put".parse()?;
/// assert!(events.contains(EventName::ObjectCreatedPut));
/// assert!(!events.contains(EventName::ObjectCreatedCopy));
/// # Ok::<(), tidegate_notify::error::EventNameError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventSet(u32);

impl EventSet {
    /// The set of no event.
    pub const EMPTY: EventSet = EventSet(0);
    /// The set of all events.
    pub const ALL: EventSet = EventSet(u32::MAX);

    /// Whether `name` is in the set.
    #[must_use]
    pub const fn contains(self, name: EventName) -> bool {
        self.0 & name.bit() != 0
    }

    /// Whether no name is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names that are in this set, in `other`, or in both.
    #[must_use]
    pub const fn union(self, other: EventSet) -> EventSet {
        EventSet(self.0 | other.0)
    }

    /// The reference's bit mask: bit 0 is `s3:ObjectAccessed:Get`, bit 31 `s3:LifecycleDelMarkerExpiration:Delete`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The names in the set, in the order of the reference's bits.
    pub fn iter(self) -> impl Iterator<Item = EventName> {
        EventName::ALL.into_iter().filter(move |name| self.contains(*name))
    }

    fn one(text: &str) -> Option<EventSet> {
        if let Some((_, texts)) = ALIASES.iter().find(|(alias, _)| *alias == text) {
            return texts
                .iter()
                .map(|text| EventSet::one(text))
                .try_fold(EventSet::EMPTY, |a, b| b.map(|b| a.union(b)));
        }
        let group = COMPOUNDS
            .iter()
            .find(|compound| **compound == text)
            .map(|compound| &compound[..compound.len() - 1]);
        let names = EventName::ALL.into_iter().filter(|name| match group {
            Some(beginning) => name.as_str().starts_with(beginning),
            None => name.as_str() == text,
        });
        let set: EventSet = names.collect();
        (!set.is_empty()).then_some(set)
    }
}

impl Default for EventSet {
    fn default() -> EventSet {
        EventName::ALL
            .into_iter()
            .filter(|name| {
                ["s3:ObjectCreated:", "s3:ObjectRemoved:", "s3:ObjectAccessed:"]
                    .iter()
                    .any(|group| name.as_str().starts_with(group))
            })
            .collect()
    }
}

impl From<EventName> for EventSet {
    fn from(name: EventName) -> EventSet {
        EventSet(name.bit())
    }
}

impl FromIterator<EventName> for EventSet {
    fn from_iter<I: IntoIterator<Item = EventName>>(names: I) -> EventSet {
        names.into_iter().fold(EventSet::EMPTY, |set, name| set.union(name.into()))
    }
}

impl FromStr for EventSet {
    type Err = EventNameError;

    fn from_str(list: &str) -> Result<EventSet, EventNameError> {
        list.split(',').map(str::trim).try_fold(EventSet::EMPTY, |set, text| match EventSet::one(text) {
            Some(more) => Ok(set.union(more)),
            None => Err(unknown(text, &accepted_in_a_set())),
        })
    }
}

impl fmt::Display for EventSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.iter().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

fn accepted_in_a_set() -> Vec<&'static str> {
    let aliases = ALIASES.iter().map(|(alias, _)| *alias);
    aliases.chain(COMPOUNDS).chain(EventName::ALL.map(EventName::as_str)).collect()
}

fn unknown(text: &str, accepted: &[&'static str]) -> EventNameError {
    EventNameError {
        text: text.chars().take(TEXT_CHARACTERS_MAX).collect(),
        suggestion: nearest(text, accepted.iter().copied()),
        accepted: accepted.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = include_str!("../tests/vectors/event-names.tsv");

    fn rows() -> impl Iterator<Item = Vec<&'static str>> {
        TABLE.lines().skip(1).map(|line| line.split('\t').collect())
    }

    #[test]
    fn every_single_name_of_the_table_has_its_bit_and_reads_back() {
        let mut singles = 0;
        for row in rows().filter(|row| row[4] == "single") {
            let name: EventName = row[0].parse().expect(row[0]);
            let mask = u32::from_str_radix(row[3].trim_start_matches("0x"), 16).expect(row[3]);

            assert_eq!(name.as_str(), row[0]);
            assert_eq!(EventSet::from(name).bits(), mask, "{name}");
            assert_eq!(row[0].parse(), Ok(EventSet::from(name)));
            singles += 1;
        }
        assert_eq!(singles, EventName::ALL.len());
    }

    #[test]
    fn every_compound_of_the_table_expands_to_its_mask() {
        for row in rows().filter(|row| row[4] == "compound") {
            let mask = u32::from_str_radix(row[3].trim_start_matches("0x"), 16).expect(row[3]);
            let set: EventSet =
                if row[0] == "(everything)" { EventSet::ALL } else { row[0].parse().expect(row[0]) };

            assert_eq!(set.bits(), mask, "{}", row[0]);
            assert_eq!(set.to_string().parse(), row[1].parse::<EventSet>(), "{}", row[0]);
        }
    }

    #[test]
    fn every_alias_stands_for_the_names_that_the_table_gives_it() {
        for (alias, _) in ALIASES {
            let expected: EventSet = rows()
                .filter(|row| row[4] == "single" && row[6] == alias)
                .map(|row| row[0].parse::<EventName>().expect(row[0]))
                .collect();

            assert_eq!(alias.parse(), Ok(expected), "{alias}");
        }
    }

    #[test]
    fn names_that_the_reference_refuses_are_refused_by_name_and_what_is_accepted_is_listed() {
        for row in rows().filter(|row| row[4] == "not-accepted") {
            assert!(row[0].parse::<EventName>().is_err(), "{}", row[0]);
            // In a list spaces are taken; that is ours.
            if !row[0].starts_with(' ') {
                let error = row[0].parse::<EventSet>().expect_err(row[0]);

                assert_eq!(error.text, row[0]);
                assert!(
                    error.accepted.contains("put, delete, get, replica, ilm, scanner, s3:ObjectAccessed:*")
                );
            }
        }
        let message = "s3:objectcreated:put".parse::<EventName>().expect_err("case counts").to_string();
        assert!(message.contains("did you mean \"s3:ObjectCreated:Put\"?"), "{message}");
    }

    #[test]
    fn the_default_is_put_delete_get() {
        assert_eq!("put,delete,get".parse(), Ok(EventSet::default()));
        assert_eq!(" put , delete,\tget".parse(), Ok(EventSet::default()));
    }

    #[test]
    fn an_empty_item_in_a_list_is_an_error() {
        for list in ["", "put,", ",put", "put,,get"] {
            assert_eq!(list.parse::<EventSet>().expect_err(list).text, "");
        }
    }

    proptest! {
        #[test]
        fn every_set_reads_back_from_its_full_names(bits in 1u32..) {
            let set = EventSet(bits);

            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
}
