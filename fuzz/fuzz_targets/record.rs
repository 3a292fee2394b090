//! Any payload of a frame.
#![no_main]
use tidegate_store::Record;

libfuzzer_sys::fuzz_target!(|payload: &[u8]| {
    let _ = Record::decode(payload);
});
