//! Any ARN, list of event names, and key pattern: what is taken is written as it was read.
#![no_main]
use tidegate_notify::{Arn, EventSet, KeyPattern};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(arn) = text.parse::<Arn>() {
        assert_eq!(arn.to_string(), text);
    }
    if let Ok(events) = text.parse::<EventSet>() {
        assert_eq!(events.to_string().parse(), Ok(events));
    }
    let (prefix, key) = text.split_at(text.floor_char_boundary(text.len() / 2));
    if let Ok(pattern) = KeyPattern::new(prefix, "") {
        let _ = pattern.matches(key);
    }
});
