//! The fuzzers' corpora, replayed.

use std::path::Path;

use tidegate_notify::{Arn, Config, Envelope, EventSet, KeyPattern};

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the corpus is there");
    let files: Vec<_> =
        entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file")).collect();
    assert!(!files.is_empty(), "{} holds something", folder.display());
    files
}

/// The input itself, every cut of it, and it with each byte wrong.
fn variations(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let cuts = (0..=bytes.len()).map(|at| bytes[..at].to_vec());
    let wrong = (0..bytes.len()).map(|at| {
        let mut wrong = bytes.to_vec();
        wrong[at] ^= 0x41;
        wrong
    });
    cuts.chain(wrong)
}

#[test]
fn every_envelope_of_the_corpus_and_every_variation_is_a_value_or_an_error() {
    for bytes in corpus("envelope") {
        for input in variations(&bytes) {
            if let Ok(envelope) = Envelope::parse(&input) {
                assert_eq!(Envelope::parse(envelope.json().as_bytes()), Ok(envelope.clone()));
            }
        }
    }
}

#[test]
fn every_configuration_of_the_corpus_and_every_variation_is_a_value_or_an_error() {
    for bytes in corpus("config") {
        let whole = String::from_utf8(bytes.clone()).expect("the corpus is text");
        assert!(Config::parse(Some(&whole), std::iter::empty()).is_ok());
        for text in variations(&bytes).filter_map(|input| String::from_utf8(input).ok()) {
            drop(Config::parse(Some(&text), std::iter::empty()));
        }
    }
}

#[test]
fn every_name_of_the_corpus_and_every_variation_is_a_value_or_an_error() {
    for text in
        corpus("names").iter().flat_map(|bytes| variations(bytes)).filter_map(|t| String::from_utf8(t).ok())
    {
        if let Ok(arn) = text.parse::<Arn>() {
            assert_eq!(arn.to_string(), text);
        }
        if let Ok(events) = text.parse::<EventSet>() {
            assert_eq!(events.to_string().parse(), Ok(events));
        }
        if let Ok(pattern) = KeyPattern::new(&text, "") {
            assert!(!text.contains('*') || pattern.matches(&text), "{text} matches itself");
        }
    }
}
