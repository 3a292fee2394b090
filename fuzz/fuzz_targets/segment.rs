//! Any bytes in place of a segment's file: opening, reading, appending and acknowledging go on.
#![no_main]
use tidegate_store::sim::survive_segment;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| survive_segment(bytes));
