//! The recorded messages of the reference (`golden/messages.jsonl`): what we write for the same events must be the same
//! bytes, and what we pass through must stay the same bytes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_notify::{Envelope, Event, EventBuilder, EventName};

const MESSAGES: &str = include_str!("golden/messages.jsonl");

#[derive(Deserialize)]
struct Message {
    operation: String,
    bucket: String,
    kafka_key: String,
    kafka_value: String,
}

fn messages() -> impl Iterator<Item = Message> {
    MESSAGES.lines().map(|line| serde_json::from_str(line).expect("a line of the recording"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    aws_region: String,
    event_name: String,
    user_identity: Identity,
    request_parameters: Option<BTreeMap<String, String>>,
    response_elements: BTreeMap<String, String>,
    #[serde(borrow)]
    s3: S3<'a>,
    source: Source,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    principal_id: String,
}

#[derive(Deserialize)]
struct S3<'a> {
    bucket: Bucket,
    #[serde(borrow)]
    object: Object<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bucket {
    name: String,
    owner_identity: Identity,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    size: Option<u64>,
    e_tag: Option<String>,
    content_type: Option<String>,
    #[serde(borrow, default)]
    user_metadata: BTreeMap<String, &'a RawValue>,
    version_id: Option<String>,
    sequencer: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    host: String,
    port: String,
    user_agent: String,
}

/// The bytes that the client sent: an escape `\ufffd` was written for a byte that is not UTF-8 (it does not say which),
/// a real U+FFFD stays raw. So the bytes come back if each escape is taken for any such byte.
fn bytes_sent(raw: &RawValue) -> Vec<u8> {
    let text = raw.get();
    let pieces = text[1..text.len() - 1].split("\\ufffd");
    let texts =
        pieces.map(|piece| serde_json::from_str::<String>(&format!("\"{piece}\"")).expect("a string"));
    texts.map(String::into_bytes).collect::<Vec<_>>().join(&0xff)
}

fn event_of(envelope: &Envelope<'_>) -> Event {
    #[derive(Deserialize)]
    struct Records<'a> {
        #[serde(rename = "Records", borrow)]
        records: [Record<'a>; 1],
    }
    let Records { records: [record] } = serde_json::from_str(envelope.json()).expect("the record's fields");
    let name: EventName = record.event_name.parse().expect("a name of the reference");
    let time = envelope.event_time_ms().expect("a time");
    let (bucket, object) = (record.s3.bucket, record.s3.object);

    let builder = Event::builder(name, bucket.name, envelope.object(), time)
        .region(record.aws_region)
        .principal_id(record.user_identity.principal_id)
        .bucket_owner(bucket.owner_identity.principal_id)
        .size(object.size.unwrap_or_default())
        .etag(object.e_tag.unwrap_or_default())
        .content_type(object.content_type.unwrap_or_default())
        .version_id(object.version_id.unwrap_or_default())
        .sequencer(object.sequencer)
        .source_host(record.source.host)
        .source_port(record.source.port)
        .user_agent(record.source.user_agent);
    let metadata = object.user_metadata.into_iter();
    let builder =
        metadata.fold(builder, |builder, (name, value)| builder.user_metadata(name, bytes_sent(value)));
    let parameters = record.request_parameters.into_iter().flatten();
    let builder = parameters.fold(builder, |builder, (name, value)| builder.request_parameter(name, value));
    let elements = record.response_elements.into_iter();
    elements
        .fold(builder, |builder: EventBuilder, (name, value)| builder.response_element(name, value))
        .build()
        .expect("what the reference sent is an event")
}

#[test]
fn every_recorded_message_passes_through_unchanged_with_its_key() {
    let mut count = 0;
    for message in messages() {
        let envelope = Envelope::parse(message.kafka_value.as_bytes()).expect(&message.operation);

        assert_eq!(envelope.json(), message.kafka_value, "{}", message.operation);
        assert_eq!(envelope.key(), message.kafka_key, "{}", message.operation);
        // Background work of several buckets is one line of the recording's plan: `scan|ilm|ilmv`.
        assert!(message.bucket.split('|').any(|bucket| bucket == envelope.bucket()), "{}", message.operation);
        count += 1;
    }
    assert_eq!(count, 122);
}

#[test]
fn every_recorded_message_is_what_we_write_for_the_same_event() {
    for message in messages() {
        let recorded = Envelope::parse(message.kafka_value.as_bytes()).expect(&message.operation);
        let ours = event_of(&recorded).to_envelope();

        assert_eq!(ours.json(), message.kafka_value, "{}", message.operation);
        assert_eq!(ours, recorded, "{}", message.operation);
    }
}

#[test]
fn a_recorded_message_that_was_pretty_printed_on_the_way_comes_back_to_the_same_bytes() {
    for message in messages() {
        // White space beside the structure only: no string of the recording is touched.
        let spaced = spaced_out(&message.kafka_value);
        let envelope = Envelope::parse(spaced.as_bytes()).expect(&message.operation);

        assert_eq!(envelope.json(), message.kafka_value);
    }
}

fn spaced_out(json: &str) -> String {
    let (mut out, mut in_string, mut escaped) = (String::from("\r\n"), false, false);
    for c in json.chars() {
        let structure = !in_string && "{}[]:,".contains(c);
        if structure {
            out.extend([' ', c, '\n', '\t']);
        } else {
            out.push(c);
        }
        in_string ^= c == '"' && !escaped;
        escaped = in_string && c == '\\' && !escaped;
    }
    out
}
