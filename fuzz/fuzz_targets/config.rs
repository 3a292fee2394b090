//! Any configuration file.
#![no_main]
use tidegate_notify::Config;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(config) = Config::parse(Some(text), std::iter::empty()) {
        let _ = config.rules.matching("bucket", "some/key", tidegate_notify::EventName::ObjectCreatedPut);
    }
});
