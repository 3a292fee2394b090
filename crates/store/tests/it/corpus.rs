//! The fuzzers' corpora, replayed.

use std::path::Path;

use tidegate_store::Record;
use tidegate_store::sim::survive_segment;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the corpus is there");
    let files: Vec<_> =
        entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file")).collect();
    assert!(!files.is_empty(), "{} holds something", folder.display());
    files
}

#[test]
fn every_segment_of_the_corpus_is_survived_whole_cut_and_with_wrong_bytes_in_header_and_frames() {
    for bytes in corpus("segment") {
        survive_segment(&bytes);
        for at in (0..bytes.len()).filter(|at| *at < 100 || *at > 4090) {
            survive_segment(&bytes[..at]);
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            survive_segment(&wrong);
        }
    }
}

#[test]
fn every_record_of_the_corpus_is_survived_whole_cut_and_with_each_byte_wrong() {
    for bytes in corpus("record") {
        for at in 0..bytes.len() {
            drop(Record::decode(&bytes[..at]));
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            drop(Record::decode(&wrong));
        }
        Record::decode(&bytes).expect("the corpus holds records");
    }
}
