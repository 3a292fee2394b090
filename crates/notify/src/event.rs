//! The event as a Rust service builds it, and the record that the reference would write for it. Reads no clock and makes
//! nothing up: what is not given is left out, as the reference leaves it out.

use std::collections::BTreeMap;

use crate::envelope::Envelope;
use crate::error::EventError;
use crate::event_name::EventName;
use crate::json::{ObjectWriter, form_encoded};
use crate::time;

/// Text that came from a client and may hold any bytes; those that are not UTF-8 become `\ufffd` in the record.
type Text = Vec<u8>;

/// Something that happened to an object or a bucket.
///
/// Name, bucket, key and time are needed; everything else may be left out. [`to_envelope`](Event::to_envelope) gives
/// the JSON of the reference, byte for byte.
///
/// ```
/// use tidegate_notify::{Event, EventName};
///
/// let event = Event::builder(EventName::ObjectCreatedPut, "images", "photos/red flower.jpg", 1_927_857_906_789)
///     .size(5120)
///     .etag("0123456789abcdef0123456789abcdef")
///     .content_type("image/jpeg")
///     .user_metadata("X-Amz-Meta-Color", "red")
///     .principal_id("billing-app")
///     .build()?;
/// let envelope = event.to_envelope();
/// assert_eq!(envelope.key(), "images/photos/red flower.jpg");
/// assert!(envelope.json().contains(r#""key":"photos%2Fred+flower.jpg","size":5120"#));
/// # Ok::<(), tidegate_notify::error::EventError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    name: EventName,
    bucket: String,
    key: String,
    time_ms: i64,
    time_text: String,
    details: Details,
}

/// Everything that may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Details {
    region: Text,
    principal_id: Text,
    request_parameters: Option<BTreeMap<Text, Text>>,
    response_elements: BTreeMap<Text, Text>,
    bucket_owner: Option<Text>,
    size: u64,
    etag: Text,
    content_type: Text,
    user_metadata: BTreeMap<Text, Text>,
    version_id: Text,
    sequencer: Option<Text>,
    source_host: Text,
    source_port: Text,
    user_agent: Text,
}

impl Event {
    /// Begins an event. `key` is the object's key within the bucket, decoded; empty for an event about a bucket.
    /// `event_time_ms` is when it happened, in milliseconds since the Unix epoch.
    pub fn builder(
        name: EventName,
        bucket: impl Into<String>,
        key: impl Into<String>,
        event_time_ms: i64,
    ) -> EventBuilder {
        EventBuilder {
            name,
            bucket: bucket.into(),
            key: key.into(),
            event_time_ms,
            details: Details::default(),
        }
    }

    /// What happened.
    #[must_use]
    pub fn name(&self) -> EventName {
        self.name
    }

    /// The bucket's name.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The object's key within the bucket, decoded.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// When it happened, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn event_time_ms(&self) -> i64 {
        self.time_ms
    }

    /// The event as it travels. Its message key is `bucket/key` with leading slashes of the key taken away, as in the
    /// reference; `s3.object.key` keeps them.
    #[must_use]
    pub fn to_envelope(&self) -> Envelope<'static> {
        Envelope::of_event(self.name, self.bucket.clone(), self.key.trim_start_matches('/'), |key| {
            self.json(key)
        })
    }

    fn json(&self, key: &str) -> String {
        let mut out = String::with_capacity(1024);
        let mut envelope = ObjectWriter::begin(&mut out);
        envelope.text("EventName", self.name.as_str()).text("Key", key);
        let records = envelope.member(b"Records");
        records.push('[');
        self.write_record(records);
        records.push(']');
        envelope.end();
        out
    }

    fn write_record(&self, out: &mut String) {
        let details = &self.details;
        let mut record = ObjectWriter::begin(out);
        record
            .text("eventVersion", "2.0")
            .text("eventSource", "minio:s3")
            .text("awsRegion", &details.region)
            .text("eventTime", &self.time_text)
            .text("eventName", self.name.as_str())
            .object("userIdentity", |user| _ = user.text("principalId", &details.principal_id));
        match &details.request_parameters {
            Some(parameters) => record.map("requestParameters", parameters),
            None => record.null("requestParameters"),
        };
        record.map("responseElements", &details.response_elements);
        record.object("s3", |s3| {
            s3.text("s3SchemaVersion", "1.0").text("configurationId", "Config");
            s3.object("bucket", |bucket| self.write_bucket(bucket));
            s3.object("object", |object| self.write_object(object));
        });
        record.object("source", |source| {
            source.text("host", &details.source_host);
            source.text("port", &details.source_port);
            source.text("userAgent", &details.user_agent);
        });
        record.end();
    }

    fn write_bucket(&self, bucket: &mut ObjectWriter<'_>) {
        let owner = self.details.bucket_owner.as_ref().unwrap_or(&self.details.principal_id);
        bucket.text("name", &self.bucket);
        bucket.object("ownerIdentity", |identity| _ = identity.text("principalId", owner));
        bucket.text("arn", format!("arn:aws:s3:::{}", self.bucket));
    }

    fn write_object(&self, object: &mut ObjectWriter<'_>) {
        let details = &self.details;
        object.text("key", form_encoded(&self.key));
        if details.size > 0 {
            object.number("size", details.size);
        }
        for (name, text) in [("eTag", &details.etag), ("contentType", &details.content_type)] {
            if !text.is_empty() {
                object.text(name, text);
            }
        }
        if !details.user_metadata.is_empty() {
            object.map("userMetadata", &details.user_metadata);
        }
        if !details.version_id.is_empty() {
            object.text("versionId", &details.version_id);
        }
        match &details.sequencer {
            Some(sequencer) => object.text("sequencer", sequencer),
            None => object.text("sequencer", self.sequencer_of_the_time()),
        };
    }

    /// Nanoseconds in upper-case hexadecimal, as the reference makes it.
    fn sequencer_of_the_time(&self) -> String {
        format!("{:X}", i128::from(self.time_ms.max(0)) * 1_000_000)
    }
}

impl From<&Event> for Envelope<'static> {
    fn from(event: &Event) -> Envelope<'static> {
        event.to_envelope()
    }
}

/// Builds an [`Event`]. Texts may hold any bytes, as the headers of a request may: those that are not UTF-8 become
/// `\ufffd`, as in the reference.
#[derive(Debug, Clone)]
#[must_use = "an event is made by build()"]
pub struct EventBuilder {
    name: EventName,
    bucket: String,
    key: String,
    event_time_ms: i64,
    details: Details,
}

macro_rules! texts {
    ($($(#[$doc:meta])* $field:ident)*) => {
        $($(#[$doc])*
        pub fn $field(mut self, text: impl Into<Vec<u8>>) -> EventBuilder {
            self.details.$field = text.into();
            self
        })*
    };
}

impl EventBuilder {
    texts! {
        /// The service's region; left out: `""`.
        region
        /// Who did it: the access key. Left out, or for internal events: `""`.
        principal_id
        /// The object's entity tag, without quotes; left out: no `eTag`.
        etag
        /// The object's content type; left out: no `contentType`.
        content_type
        /// The object's version; left out: no `versionId`.
        version_id
        /// The client's address, or the node of an internal event; left out: `""`.
        source_host
        /// The client's port; the reference leaves it empty.
        source_port
        /// The client's software; left out: `""`.
        user_agent
    }

    /// The object's size in bytes; left out or 0: no `size`, as in the reference.
    pub fn size(mut self, bytes: u64) -> EventBuilder {
        self.details.size = bytes;
        self
    }

    /// What orders the events of one key, as hexadecimal text. Left out: the event's time in nanoseconds.
    pub fn sequencer(mut self, text: impl Into<Vec<u8>>) -> EventBuilder {
        self.details.sequencer = Some(text.into());
        self
    }

    /// The bucket's owner. Left out: the principal, as in the reference.
    pub fn bucket_owner(mut self, principal_id: impl Into<Vec<u8>>) -> EventBuilder {
        self.details.bucket_owner = Some(principal_id.into());
        self
    }

    /// One pair of the object's metadata; a name that was given before is replaced. Left out: no `userMetadata`.
    pub fn user_metadata(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> EventBuilder {
        self.details.user_metadata.insert(name.into(), value.into());
        self
    }

    /// One pair of `requestParameters`; the reference has `principalId`, `region`, `sourceIPAddress`, and `range`. Left
    /// out: `null`, as for an event that no request caused.
    pub fn request_parameter(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> EventBuilder {
        self.details.request_parameters.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// One pair of `responseElements`; the reference has `x-amz-request-id`, `x-amz-id-2`, `x-minio-deployment-id`,
    /// `x-minio-origin-endpoint` and, if known, `content-length`. Left out: `{}`.
    pub fn response_element(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> EventBuilder {
        self.details.response_elements.insert(name.into(), value.into());
        self
    }

    /// The endpoint that was called, as `http://host:port`: `x-minio-origin-endpoint` of the response elements.
    pub fn endpoint(self, url: impl Into<Vec<u8>>) -> EventBuilder {
        self.response_element("x-minio-origin-endpoint", url)
    }

    /// The event.
    ///
    /// # Errors
    /// [`EventError`] for a bucket's name that is empty or has a `/`, for an empty key (slashes alone are no key) of an
    /// event that is about an object, and for a time outside of the years 0000 to 9999.
    pub fn build(self) -> Result<Event, EventError> {
        let EventBuilder { name, bucket, key, event_time_ms, details } = self;
        if bucket.is_empty() || bucket.contains('/') {
            return Err(EventError::Bucket { bucket });
        }
        if key.trim_start_matches('/').is_empty() && !name.is_bucket_event() {
            return Err(EventError::EmptyKey { name });
        }
        let time_text = time::to_text(event_time_ms).ok_or(EventError::Time { event_time_ms })?;
        Ok(Event { name, bucket, key, time_ms: event_time_ms, time_text, details })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bucket: &str, key: &str) -> EventBuilder {
        Event::builder(EventName::ObjectCreatedPut, bucket, key, 0)
    }

    #[test]
    fn an_event_of_four_facts_has_every_field_that_the_reference_always_has() {
        let event = put("b", "k").build().expect("valid");

        let expected = concat!(
            r#"{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[{"eventVersion":"2.0","eventSource":"minio:s3","#,
            r#""awsRegion":"","eventTime":"1970-01-01T00:00:00.000Z","eventName":"s3:ObjectCreated:Put","#,
            r#""userIdentity":{"principalId":""},"requestParameters":null,"responseElements":{},"#,
            r#""s3":{"s3SchemaVersion":"1.0","configurationId":"Config","bucket":{"name":"b","#,
            r#""ownerIdentity":{"principalId":""},"arn":"arn:aws:s3:::b"},"object":{"key":"k","sequencer":"0"}},"#,
            r#""source":{"host":"","port":"","userAgent":""}}]}"#,
        );
        assert_eq!(event.to_envelope().json(), expected);
    }

    #[test]
    fn an_envelope_of_an_event_is_the_one_that_its_json_parses_to() {
        for (name, key) in [
            (EventName::ObjectCreatedPut, "a/ü <&>\u{2028}\"\\\n"),
            (EventName::ObjectCreatedPut, "/a"),
            (EventName::BucketCreated, ""),
        ] {
            let event = Event::builder(name, "bucket", key, 1_927_857_906_789).build().expect(key);
            let envelope = event.to_envelope();

            assert_eq!(Envelope::parse(envelope.json().as_bytes()).as_ref(), Ok(&envelope), "{key:?}");
            assert_eq!(envelope.event_time_ms(), Some(event.event_time_ms()));
        }
    }

    #[test]
    fn leading_slashes_of_a_key_are_gone_in_the_message_key() {
        assert_eq!(put("b", "//a/b").build().expect("valid").to_envelope().key(), "b/a/b");
    }

    #[test]
    fn removals_keep_size_and_etag_where_the_caller_gives_them() {
        let event = Event::builder(EventName::ObjectRemovedDelete, "b", "k", 0).size(7).etag("e").build();

        let json = event.expect("valid").to_envelope().json().to_owned();
        assert!(json.contains(r#""object":{"key":"k","size":7,"eTag":"e","sequencer""#), "{json}");
    }

    #[test]
    fn what_no_record_can_say_is_refused_when_the_event_is_built() {
        assert!(matches!(put("", "k").build(), Err(EventError::Bucket { .. })));
        assert!(matches!(put("a/b", "k").build(), Err(EventError::Bucket { .. })));
        assert!(matches!(put("b", "//").build(), Err(EventError::EmptyKey { .. })));
        let late = Event::builder(EventName::ObjectCreatedPut, "b", "k", i64::MAX).build();
        assert!(matches!(late, Err(EventError::Time { .. })));
    }
}
