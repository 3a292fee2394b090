//! HTTP as `serve` speaks it. An answer of 200 means that every matched target has the events durable.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tidegate::delivery::TargetState;
use tidegate::{Engine, Envelope, Published, TargetReport};

/// When a sender should try again after a refusal, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";

pub(crate) fn router(engine: Engine, body_bytes_max: usize) -> Router {
    Router::new()
        .route("/events", post(events))
        .route("/healthz", get(healthz))
        .layer(DefaultBodyLimit::max(body_bytes_max))
        .with_state(Arc::new(engine))
}

async fn events(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    let parsed = if is_ndjson(&headers) { parse_lines(&body) } else { parse_one(&body) };
    match parsed {
        Ok(envelopes) => answer(&engine.publish_all(&envelopes).await),
        Err((line, reason)) => bad_input(line, &reason),
    }
}

fn is_ndjson(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    ["application/x-ndjson", "application/ndjson", "application/jsonl"]
        .iter()
        .any(|t| essence.eq_ignore_ascii_case(t))
}

fn parse_one(body: &[u8]) -> Result<Vec<Envelope<'_>>, (usize, String)> {
    Envelope::parse(body).map(|envelope| vec![envelope]).map_err(|error| (1, error.to_string()))
}

/// Lines without anything in them are passed over; lines are counted from 1.
fn parse_lines(body: &[u8]) -> Result<Vec<Envelope<'_>>, (usize, String)> {
    let lines = body.split(|byte| *byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.trim_ascii().is_empty())
        .map(|(number, line)| Envelope::parse(line).map_err(|error| (number + 1, error.to_string())))
        .collect()
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
    let mut response = json_response(StatusCode::SERVICE_UNAVAILABLE, &body);
    response.headers_mut().insert(RETRY_AFTER, axum::http::HeaderValue::from_static(RETRY_AFTER_SECONDS));
    response
}

/// 200 while every target can at least keep what it is given; 503 names those that cannot.
async fn healthz(State(engine): State<Arc<Engine>>) -> Response {
    let status = engine.status();
    let failed = status.targets.iter().any(cannot_keep);
    let body = json!({
        "status": if failed { "failing" } else { "ok" },
        "unmatched": status.unmatched,
        "targets": status.targets.iter().map(target).collect::<Vec<_>>(),
    });
    json_response(if failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, &body)
}

fn cannot_keep(target: &TargetReport) -> bool {
    let queue_failed = target.queue.as_ref().is_none_or(|queue| queue.failed.is_some());
    queue_failed || matches!(target.state, TargetState::Failed { .. })
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
