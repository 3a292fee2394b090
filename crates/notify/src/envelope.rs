//! The envelope: one event as it travels, from an HTTP body or an [`Event`](crate::Event) to the value of a Kafka
//! message. The JSON is the sender's, byte for byte but for insignificant white space; it is never written anew.

use std::borrow::Cow;

use serde::Deserialize;

use crate::error::EnvelopeError;
use crate::event_name::EventName;
use crate::scan::{self, Scanner};
use crate::time;

/// One event with all that routing and Kafka need: its name, bucket, object, message key and JSON.
///
/// Borrows from the bytes it was parsed from, where they are minified already; [`into_owned`](Envelope::into_owned)
/// lets it outlive them.
///
/// ```
/// use tidegate_notify::{Envelope, EventName};
///
/// let body = br#"{ "EventName": "s3:ObjectCreated:Put", "Key": "images/a.jpg", "Records": [ {} ] }"#;
/// let envelope = Envelope::parse(body)?;
/// assert_eq!(envelope.event_name(), EventName::ObjectCreatedPut);
/// assert_eq!((envelope.bucket(), envelope.object()), ("images", "a.jpg"));
/// assert_eq!(envelope.json(), r#"{"EventName":"s3:ObjectCreated:Put","Key":"images/a.jpg","Records":[{}]}"#);
/// # Ok::<(), tidegate_notify::error::EnvelopeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a> {
    name: EventName,
    json: Cow<'a, str>,
    key: Cow<'a, str>,
    bucket_bytes: usize,
}

impl<'a> Envelope<'a> {
    /// Arrays and objects inside one another that are taken, the envelope itself counted.
    pub const DEPTH_MAX: usize = scan::DEPTH_MAX;

    /// Reads what an object store posts: one JSON object with `EventName`, `Key` (`bucket/object`, decoded) and
    /// `Records`, in any order, with any others beside them. Takes time and memory in proportion to the bytes.
    ///
    /// # Errors
    /// [`EnvelopeError`] says what is wrong, at which byte, and what was expected.
    pub fn parse(bytes: &'a [u8]) -> Result<Envelope<'a>, EnvelopeError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| EnvelopeError::Utf8 { position: error.valid_up_to() })?;
        let mut members = Members::default();
        let mut scanner = Scanner::new(text);
        if !scanner.take(b'{') {
            return Err(scanner.unexpected("`{`, the beginning of an envelope"));
        }
        scanner.space();
        while !scanner.take(b'}') {
            members.read(&mut scanner, text)?;
            scanner.space();
            if scanner.take(b',') {
                scanner.space();
                if scanner.peek() == Some(b'}') {
                    return Err(scanner.unexpected("a member's name in double quotes"));
                }
            } else if scanner.peek() != Some(b'}') {
                return Err(scanner.unexpected("`,` or `}`"));
            }
        }
        let json = scanner.finish()?;

        let name = members.event_name.ok_or(EnvelopeError::Missing { member: EVENT_NAME })?;
        let (position, key) = members.key.ok_or(EnvelopeError::Missing { member: KEY })?;
        members.records.ok_or(EnvelopeError::Missing { member: RECORDS })?;
        let bucket_bytes = bucket_bytes(&key, name).map_err(|problem| EnvelopeError::Key {
            position,
            key: key.clone().into_owned(),
            problem,
        })?;
        Ok(Envelope { name, json, key, bucket_bytes })
    }

    /// An envelope of parts that [`Event`](crate::Event) has checked; `json` writes what its key says.
    pub(crate) fn of_event(
        name: EventName,
        bucket: String,
        object: &str,
        json: impl FnOnce(&str) -> String,
    ) -> Envelope<'static> {
        let (bucket_bytes, mut key) = (bucket.len(), bucket);
        key.push('/');
        key.push_str(object);
        Envelope { name, json: Cow::Owned(json(&key)), key: Cow::Owned(key), bucket_bytes }
    }

    /// What happened.
    #[must_use]
    pub fn event_name(&self) -> EventName {
        self.name
    }

    /// The bucket's name; never empty.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.key[..self.bucket_bytes]
    }

    /// The object's key within the bucket, decoded; empty only for an event about a bucket as a whole, or if the
    /// sender wrote it so.
    #[must_use]
    pub fn object(&self) -> &str {
        self.key.get(self.bucket_bytes + 1..).unwrap_or_default()
    }

    /// The Kafka message key: the text of `Key`, decoded. Events of one key stay in order.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value of the Kafka message: the sender's JSON without insignificant white space.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }

    /// When the event happened, in milliseconds since the Unix epoch: `eventTime` of the first record, if it is there
    /// and a time. Reads the JSON again on each call.
    #[must_use]
    pub fn event_time_ms(&self) -> Option<i64> {
        #[derive(Deserialize)]
        struct Times<'t> {
            #[serde(rename = "Records", borrow)]
            records: Vec<Time<'t>>,
        }
        #[derive(Deserialize)]
        struct Time<'t> {
            #[serde(rename = "eventTime", borrow)]
            event_time: Option<Cow<'t, str>>,
        }
        let times: Times<'_> = serde_json::from_str(&self.json).ok()?;
        time::from_text(times.records.first()?.event_time.as_deref()?)
    }

    /// The same envelope with bytes of its own.
    #[must_use]
    pub fn into_owned(self) -> Envelope<'static> {
        let Envelope { name, json, key, bucket_bytes } = self;
        Envelope {
            name,
            json: Cow::Owned(json.into_owned()),
            key: Cow::Owned(key.into_owned()),
            bucket_bytes,
        }
    }
}

const EVENT_NAME: &str = "EventName";
const KEY: &str = "Key";
const RECORDS: &str = "Records";

/// The members of an envelope that were met so far.
#[derive(Default)]
struct Members<'a> {
    event_name: Option<EventName>,
    key: Option<(usize, Cow<'a, str>)>,
    records: Option<()>,
}

impl<'a> Members<'a> {
    /// Steps over one member, and keeps what an envelope is about.
    fn read(&mut self, scanner: &mut Scanner<'a>, text: &'a str) -> Result<(), EnvelopeError> {
        let start = scanner.position();
        let name = scanner.name()?;
        scanner.space();
        let duplicate = |member| EnvelopeError::Duplicate { member, position: start };
        // A name that is no text at all (half of a surrogate pair) is none of ours.
        match decoded(&text[name]).as_deref() {
            Some(EVENT_NAME) if self.event_name.is_some() => Err(duplicate(EVENT_NAME)),
            Some(KEY) if self.key.is_some() => Err(duplicate(KEY)),
            Some(RECORDS) if self.records.is_some() => Err(duplicate(RECORDS)),
            Some(EVENT_NAME) => {
                let (position, value) = string(scanner, text, EVENT_NAME)?;
                let name = value.parse().map_err(|error| EnvelopeError::EventName { position, error })?;
                self.event_name = Some(name);
                Ok(())
            }
            Some(KEY) => string(scanner, text, KEY).map(|key| self.key = Some(key)),
            Some(RECORDS) => records(scanner).map(|()| self.records = Some(())),
            _ => scanner.value(1),
        }
    }
}

/// A member's value that must be a string: its position and its text, decoded.
fn string<'a>(
    scanner: &mut Scanner<'a>,
    text: &'a str,
    member: &'static str,
) -> Result<(usize, Cow<'a, str>), EnvelopeError> {
    let position = scanner.position();
    if scanner.peek() != Some(b'"') {
        return Err(wrong_type(scanner, member, "a string"));
    }
    let place = scanner.string()?;
    let value = decoded(&text[place]).ok_or(EnvelopeError::Surrogate { member, position })?;
    Ok((position, value))
}

/// `Records` must be an array with something in it.
fn records(scanner: &mut Scanner<'_>) -> Result<(), EnvelopeError> {
    const EXPECTED: &str = "an array of at least one record";
    let position = scanner.position();
    if !scanner.take(b'[') {
        return Err(wrong_type(scanner, RECORDS, EXPECTED));
    }
    scanner.space();
    if scanner.peek() == Some(b']') {
        return Err(EnvelopeError::Type {
            member: RECORDS,
            position,
            found: "an empty array",
            expected: EXPECTED,
        });
    }
    loop {
        scanner.value(2)?;
        scanner.space();
        if scanner.take(b']') {
            return Ok(());
        }
        if !scanner.take(b',') {
            return Err(scanner.unexpected("`,` or `]`"));
        }
    }
}

/// The value that comes next is of the wrong type, or no value at all.
fn wrong_type(scanner: &mut Scanner<'_>, member: &'static str, expected: &'static str) -> EnvelopeError {
    let position = scanner.position();
    let found = match scanner.peek() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    match scanner.value(1) {
        Ok(()) => EnvelopeError::Type { member, position, found, expected },
        Err(error) => error,
    }
}

/// The text of a string that was scanned, quotes included; `None` if an escape is no character.
fn decoded(string: &str) -> Option<Cow<'_, str>> {
    if string.contains('\\') {
        return serde_json::from_str(string).map(Cow::Owned).ok();
    }
    Some(Cow::Borrowed(string.trim_matches('"')))
}

/// How many bytes of the key are the bucket's name.
fn bucket_bytes(key: &str, name: EventName) -> Result<usize, &'static str> {
    match key.find('/') {
        Some(0) => Err("the bucket's name is empty"),
        Some(slash) => Ok(slash),
        None if key.is_empty() => Err("it is empty"),
        None if name.is_bucket_event() => Ok(key.len()),
        None => Err("no `/`, and the event is about an object"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> EnvelopeError {
        Envelope::parse(text.as_bytes()).expect_err(text)
    }

    #[test]
    fn members_may_stand_in_any_order_with_others_and_keep_it() {
        let text = r#"{"x":{"Key":1},"Records":[{},2],"Key":"b/a\u002fb","y":"\ufffd","EventName":"s3:ObjectCreated:Put"}"#;
        let envelope = Envelope::parse(text.as_bytes()).expect(text);

        assert_eq!(envelope.json(), text);
        assert!(matches!(envelope.json, Cow::Borrowed(_)));
        assert_eq!((envelope.key(), envelope.bucket(), envelope.object()), ("b/a/b", "b", "a/b"));
    }

    #[test]
    fn a_member_that_is_missing_doubled_or_of_another_type_is_named() {
        let (put, key, records) =
            (r#""EventName":"s3:ObjectCreated:Put""#, r#""Key":"b/k""#, r#""Records":[{}]"#);
        for (text, says) in [
            ("{}".to_owned(), "no member \"EventName\""),
            (format!("{{{put},{records}}}"), "no member \"Key\""),
            (format!("{{{put},{key}}}"), "no member \"Records\""),
            (format!("{{{put},{key},{records},\"\\u004bey\":1}}"), "second member \"Key\" at byte 63"),
            (format!("{{{put},{put}}}"), "second member \"EventName\""),
            (format!("{{{put},{records},{records}}}"), "second member \"Records\""),
            (r#"{"Key":["b/k"]}"#.to_owned(), "Key at byte 7 is an array, expected a string"),
            (r#"{"EventName":null}"#.to_owned(), "EventName at byte 13 is null, expected a string"),
            (r#"{"Records":{}}"#.to_owned(), "Records at byte 11 is an object, expected an array"),
            (r#"{"Records": [ ]}"#.to_owned(), "Records at byte 12 is an empty array"),
            (r#"{"EventName":"s3:ObjectCreated:Putt"}"#.to_owned(), "did you mean \"s3:ObjectCreated:Put\"?"),
            (r#"{"Key":"b/\ud800"}"#.to_owned(), "half of a surrogate pair"),
            (r#"{"Key":}"#.to_owned(), "expected a value"),
            (r#"[{"Key":"b/k"}]"#.to_owned(), "expected `{`"),
            ("null".to_owned(), "expected `{`"),
            (format!("{{{put},{key},{records}}}{{}}"), "text after the end of the envelope at byte 63"),
            (format!("{{{put},}}"), "expected a member's name"),
        ] {
            let message = error(&text).to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn a_key_needs_a_bucket_and_an_object_unless_the_event_is_about_a_bucket() {
        let text =
            |name: &str, key: &str| format!(r#"{{"EventName":"{name}","Key":"{key}","Records":[{{}}]}}"#);
        for key in ["", "/", "/b/k", "b"] {
            let error = error(&text("s3:ObjectCreated:Put", key));
            assert!(matches!(error, EnvelopeError::Key { .. }), "{key}: {error}");
        }
        for (key, object) in [("b", ""), ("b/", ""), ("b/k", "k")] {
            let text = text("s3:BucketCreated:*", key);
            let envelope = Envelope::parse(text.as_bytes()).expect(key);
            assert_eq!((envelope.bucket(), envelope.object(), envelope.key()), ("b", object, key));
        }
    }

    #[test]
    fn a_body_that_is_not_utf8_is_refused_with_the_position() {
        assert_eq!(Envelope::parse(b"{\"Key\":\"\xff\"}"), Err(EnvelopeError::Utf8 { position: 8 }));
    }

    #[test]
    fn a_body_nested_too_deep_is_refused_at_the_limit() {
        let deep = |levels: usize| {
            let (open, shut) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
            format!(r#"{{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[{{}}],"x":{open}{shut}}}"#)
        };

        assert!(Envelope::parse(deep(Envelope::DEPTH_MAX).as_bytes()).is_ok());
        assert!(matches!(error(&deep(Envelope::DEPTH_MAX + 1)), EnvelopeError::TooDeep { .. }));
        let records = format!(r#"{{"Records":{}}}"#, "[".repeat(Envelope::DEPTH_MAX));
        assert!(matches!(error(&records), EnvelopeError::TooDeep { .. }));
    }

    #[test]
    fn the_time_of_the_first_record_is_read_where_there_is_one() {
        let time = |records: &str| {
            let text = format!(r#"{{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":{records}}}"#);
            Envelope::parse(text.as_bytes()).expect(records).event_time_ms()
        };

        assert_eq!(time(r#"[{"eventTime":"1970-01-01T00:00:01.250Z"},{"x":1}]"#), Some(1250));
        assert_eq!(time(r#"[{"eventTime":"soon"}]"#), None);
        assert_eq!(time("[1]"), None);
    }

    proptest! {
        #[test]
        fn no_body_is_too_odd_to_answer(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Envelope::parse(&bytes);
        }

        #[test]
        fn one_changed_byte_never_panics_and_what_is_taken_is_still_json(at in 0usize..90, byte in any::<u8>()) {
            let mut bytes = br#"{"EventName":"s3:ObjectCreated:Put","Key":"b/\u00e9k","Records":[{"a":[1,{"b":null}]}]}"#.to_vec();
            let place = at % bytes.len();
            bytes[place] = byte;
            if let Ok(envelope) = Envelope::parse(&bytes) {
                prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(envelope.json()).is_ok());
                prop_assert!(!envelope.bucket().is_empty());
            }
        }
    }
}
