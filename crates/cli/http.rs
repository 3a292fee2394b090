//! HTTP as `serve` speaks it. An answer of 200 means that every matched target has the events durable.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tidegate::store::QueueOptions;
use tidegate::{Engine, Envelope, Published, TargetReport};
use tokio::sync::Semaphore;

/// When a sender should try again after a refusal, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";
/// Bodies that are being read or published, in bytes: further requests wait. Four of the largest by default.
const BODIES_BYTES_MAX: usize = 64 << 20;
/// How long a sender may take for its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// What a record has beside its key and its value, in bytes, rounded up.
const RECORD_EXTRA_BYTES: usize = 64;

/// What every request finds.
struct Service {
    engine: Engine,
    body_bytes_max: usize,
    /// One permit a KiB of body.
    bodies: Semaphore,
}

pub(crate) fn router(engine: Engine, body_bytes_max: usize) -> Router {
    let bodies = Semaphore::new(kib(BODIES_BYTES_MAX.max(body_bytes_max)) as usize);
    Router::new()
        .route("/events", post(events))
        .route("/healthz", get(healthz))
        .with_state(Arc::new(Service { engine, body_bytes_max, bodies }))
}

async fn events(State(service): State<Arc<Service>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let max = service.body_bytes_max;
    let declared = declared_bytes(&parts.headers).unwrap_or(max);
    if declared > max {
        return too_large(max);
    }
    let Ok(_permit) = service.bodies.acquire_many(kib(declared)).await else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": "the daemon is ending" }));
    };
    let body = match read(body, max).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let parsed = if is_ndjson(&parts.headers) { parse_lines(&body) } else { parse_one(&body) };
    match parsed {
        Ok(envelopes) => answer(&service.engine.publish_all(&envelopes).await),
        Err((line, reason)) => bad_input(line, &reason),
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 4)
}

fn declared_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn read(body: Body, max: usize) -> Result<Bytes, Response> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, max)).await {
        Ok(Ok(body)) => Ok(body),
        // Either longer than it may be, or the sender is gone and reads no answer.
        Ok(Err(_)) => Err(too_large(max)),
        Err(_) => {
            let error = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            Err(json_response(StatusCode::REQUEST_TIMEOUT, &json!({ "error": error })))
        }
    }
}

fn too_large(max: usize) -> Response {
    let error =
        format!("the body is larger than {max} bytes; send fewer events at once, or raise --body-bytes-max");
    json_response(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "error": error }))
}

fn is_ndjson(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    ["application/x-ndjson", "application/ndjson", "application/jsonl"]
        .iter()
        .any(|t| essence.eq_ignore_ascii_case(t))
}

fn parse_one(body: &[u8]) -> Result<Vec<Envelope<'_>>, (usize, String)> {
    parse(body, 1).map(|envelope| vec![envelope])
}

/// Lines without anything in them are passed over; lines are counted from 1.
fn parse_lines(body: &[u8]) -> Result<Vec<Envelope<'_>>, (usize, String)> {
    let lines = body.split(|byte| *byte == b'\n').zip(1..);
    lines
        .filter(|(line, _)| !line.trim_ascii().is_empty())
        .map(|(line, number)| parse(line, number))
        .collect()
}

/// What no queue would ever take is bad input too: asking the sender to try again would be in vain.
fn parse(text: &[u8], line: usize) -> Result<Envelope<'_>, (usize, String)> {
    let envelope = Envelope::parse(text).map_err(|error| (line, error.to_string()))?;
    let bytes = envelope.key().len() + envelope.json().len() + RECORD_EXTRA_BYTES;
    let max = QueueOptions::default().record_bytes_max;
    if bytes > max {
        return Err((line, format!("an event of {bytes} bytes; {max} are taken at most")));
    }
    Ok(envelope)
}

fn bad_input(line: usize, reason: &str) -> Response {
    let body = json!({ "error": reason, "line": line });
    json_response(StatusCode::BAD_REQUEST, &body)
}

fn answer(published: &Published) -> Response {
    let accepted: Vec<Value> = (published.accepted.iter())
        .map(|a| json!({ "arn": a.arn.to_string(), "first": a.first.get(), "last": a.last.get(), "events": a.events }))
        .collect();
    let refused: Vec<Value> = (published.refused.iter())
        .map(|r| json!({ "arn": r.arn.to_string(), "events": r.events, "reason": r.reason.to_string() }))
        .collect();
    let body = json!({
        "events": published.events,
        "unmatched": published.unmatched,
        "accepted": accepted,
        "refused": refused,
    });
    if published.is_complete() {
        return json_response(StatusCode::OK, &body);
    }
    refusal(StatusCode::SERVICE_UNAVAILABLE, &body)
}

fn refusal(status: StatusCode, body: &Value) -> Response {
    let mut response = json_response(status, body);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    response
}

/// 200 while every target can at least keep what it is given, delivered or not; 503 names those that cannot.
async fn healthz(State(service): State<Arc<Service>>) -> Response {
    let status = service.engine.status();
    let failing = status.targets.iter().any(cannot_keep);
    let body = json!({
        "status": if failing { "failing" } else { "ok" },
        "unmatched": status.unmatched,
        "targets": status.targets.iter().map(target).collect::<Vec<_>>(),
    });
    json_response(if failing { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, &body)
}

fn cannot_keep(target: &TargetReport) -> bool {
    target.queue.as_ref().is_none_or(|queue| queue.failed.is_some())
}

fn target(report: &TargetReport) -> Value {
    let mut value = json!({
        "arn": report.name,
        "state": report.state.word(),
        "reason": report.state.reason(),
    });
    if let Some(queue) = &report.queue {
        value["queued"] = queue.queued.into();
        value["queue"] = json!({
            "start": queue.start.get(),
            "cursor": queue.cursor.get(),
            "durable": queue.durable.get(),
            "end": queue.end.get(),
            "bytes": queue.bytes,
            "lost": queue.counters.lost,
            "failed": queue.failed.as_deref(),
        });
    }
    if let Some(delivery) = &report.delivery {
        let counters = &delivery.counters;
        value["delivered"] = counters.delivered.into();
        value["dead_lettered"] = counters.dead_lettered.into();
        value["retried"] = counters.retried.into();
        value["last_error"] = delivery.last_error.as_ref().map(|(reason, _)| reason.to_string()).into();
    }
    value
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[{}]}"#;

    #[test]
    fn lines_are_counted_from_one_and_empty_ones_are_passed_over() {
        let good = format!("\n{EVENT}\r\n\n{EVENT}");
        assert_eq!(parse_lines(good.as_bytes()).map(|parsed| parsed.len()), Ok(2));

        let bad = format!("{EVENT}\n\nnonsense\n{EVENT}");
        let (line, reason) = parse_lines(bad.as_bytes()).expect_err("the third line is no envelope");
        assert_eq!(line, 3);
        assert!(reason.contains("expected"), "{reason}");
    }

    #[test]
    fn an_empty_body_is_no_envelope_and_an_empty_list_of_lines_is_no_error() {
        assert!(parse_one(b"").is_err());
        assert_eq!(parse_lines(b"\n\n"), Ok(Vec::new()));
    }
}
