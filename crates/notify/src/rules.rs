//! Rules: which events go to which target. Owns the matching and nothing else; that a rule's target may not exist is
//! for the reader of the configuration to say.

use std::fmt;

use crate::arn::{Arn, TargetId};
use crate::event_name::{EventName, EventSet};
use crate::pattern::{BucketPattern, KeyPattern};

/// One rule: events of some buckets and keys go to one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The buckets it is for.
    pub bucket: BucketPattern,
    /// The target, by its ARN.
    pub arn: Arn,
    /// The events it listens for.
    pub events: EventSet,
    /// The keys it wants.
    pub pattern: KeyPattern,
}

/// Why a rule does not match an event: the first of its parts that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// The bucket is another.
    Bucket,
    /// The event is not among the rule's.
    Event,
    /// The key does not match prefix and suffix.
    Key,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mismatch::Bucket => "the bucket differs",
            Mismatch::Event => "the event is not among the rule's",
            Mismatch::Key => "the key does not match prefix and suffix",
        })
    }
}

impl Rule {
    /// Why the rule does not match, or `None` if it does. `object` is the decoded key within the bucket.
    #[must_use]
    pub fn mismatch(&self, bucket: &str, object: &str, name: EventName) -> Option<Mismatch> {
        if !self.bucket.matches(bucket) {
            Some(Mismatch::Bucket)
        } else if !self.events.contains(name) {
            Some(Mismatch::Event)
        } else if !self.pattern.matches(object) {
            Some(Mismatch::Key)
        } else {
            None
        }
    }
}

/// All rules, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// The targets of an event: each once, however many rules match, in the order of the first rule that names it. An
    /// empty list is an event that no rule wants. `object` is the decoded key within the bucket.
    ///
    /// ```
    /// use tidegate_notify::{EventName, Rule, Rules};
    ///
    /// let rules = Rules::from_iter([Rule {
    ///     bucket: "images".parse()?,
    ///     arn: "arn:minio:sqs::primary:kafka".parse()?,
    ///     events: "put".parse()?,
    ///     pattern: Default::default(),
    /// }]);
    /// let targets = rules.matching("images", "photos/a.jpg", EventName::ObjectCreatedPut);
    /// assert_eq!(targets[0].as_str(), "primary");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn matching(&self, bucket: &str, object: &str, name: EventName) -> Vec<&TargetId> {
        let mut targets = Vec::new();
        for rule in &self.0 {
            let id = rule.arn.id();
            if !targets.contains(&id) && rule.mismatch(bucket, object, name).is_none() {
                targets.push(id);
            }
        }
        targets
    }

    /// The rules, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Rule> {
        self.0.iter()
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Rule> for Rules {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Rules {
        Rules(rules.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Rules {
    type Item = &'a Rule;
    type IntoIter = std::slice::Iter<'a, Rule>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(bucket: &str, id: &str, events: &str, prefix: &str, suffix: &str) -> Rule {
        Rule {
            bucket: bucket.parse().expect(bucket),
            arn: Arn::new("", id.parse().expect(id)).expect("an empty region"),
            events: events.parse().expect(events),
            pattern: KeyPattern::new(prefix, suffix).expect("short"),
        }
    }

    fn targets(rules: &Rules, bucket: &str, object: &str, name: EventName) -> Vec<String> {
        rules.matching(bucket, object, name).into_iter().map(TargetId::to_string).collect()
    }

    #[test]
    fn an_event_goes_to_a_target_once_however_many_rules_match() {
        let rules = Rules::from_iter([
            rule("images", "b", "put", "", ""),
            rule("*", "a", "put", "", ""),
            rule("images", "b", "put", "photos/", ""),
        ]);

        assert_eq!(targets(&rules, "images", "photos/x", EventName::ObjectCreatedPut), ["b", "a"]);
        assert_eq!(targets(&rules, "other", "photos/x", EventName::ObjectCreatedPut), ["a"]);
        assert!(targets(&rules, "images", "photos/x", EventName::ObjectRemovedDelete).is_empty());
    }

    #[test]
    fn two_buckets_with_two_targets_stay_apart() {
        let rules = Rules::from_iter([rule("one", "a", "put", "", ""), rule("two", "b", "put", "", "")]);

        assert_eq!(targets(&rules, "one", "k", EventName::ObjectCreatedPut), ["a"]);
        assert_eq!(targets(&rules, "two", "k", EventName::ObjectCreatedPut), ["b"]);
    }

    #[test]
    fn keys_are_matched_decoded_so_slashes_and_spaces_are_themselves() {
        let rules = Rules::from_iter([rule("b", "a", "put", "a b/", "+%2F")]);

        assert_eq!(targets(&rules, "b", "a b/c+%2F", EventName::ObjectCreatedPut), ["a"]);
        assert!(targets(&rules, "b", "a+b%2Fc+%2F", EventName::ObjectCreatedPut).is_empty());
    }

    #[test]
    fn a_rule_says_which_of_its_parts_does_not_match() {
        let rule = rule("images", "a", "put", "photos/", ".jpg");

        assert_eq!(rule.mismatch("other", "x", EventName::ObjectAccessedGet), Some(Mismatch::Bucket));
        assert_eq!(rule.mismatch("images", "x", EventName::ObjectAccessedGet), Some(Mismatch::Event));
        assert_eq!(rule.mismatch("images", "x", EventName::ObjectCreatedPut), Some(Mismatch::Key));
        assert_eq!(rule.mismatch("images", "photos/x.jpg", EventName::ObjectCreatedPut), None);
    }

    #[test]
    fn bucket_events_are_deliverable() {
        let rules = Rules::from_iter([rule("*", "a", "s3:BucketCreated:*", "", "")]);

        assert_eq!(targets(&rules, "new", "", EventName::BucketCreated), ["a"]);
    }
}
