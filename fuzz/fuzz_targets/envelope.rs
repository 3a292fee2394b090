//! Any HTTP body: a value or an error, and what is taken stays as it is when it is read again.
#![no_main]
use tidegate_notify::Envelope;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    if let Ok(envelope) = Envelope::parse(body) {
        assert_eq!(Envelope::parse(envelope.json().as_bytes()).expect("it was read before"), envelope);
    }
});
