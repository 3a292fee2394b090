//! "Did you mean": the known word nearest to one that is not known.

/// The longest word that is looked up; a longer one is no slip of the pen, and comparing costs its length times others.
const WORD_BYTES_MAX: usize = 64;

/// The word nearest to `unknown` by edits, if at most a third of it would have to be edited; case is ignored.
pub(crate) fn nearest<'a>(unknown: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if unknown.is_empty() || unknown.len() > WORD_BYTES_MAX {
        return None;
    }
    let unknown = unknown.to_ascii_lowercase();
    let distances = words.into_iter().map(|word| (edits(&unknown, &word.to_ascii_lowercase()), word));
    distances
        .min_by_key(|(distance, _)| *distance)
        .filter(|(d, _)| *d <= unknown.len().div_ceil(3))
        .map(|(_, w)| w)
}

/// The Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_finds_the_word_and_another_word_finds_none() {
        let words = ["topic", "brokers", "queue_dir"];

        assert_eq!(nearest("topik", words), Some("topic"));
        assert_eq!(nearest("Broker", words), Some("brokers"));
        assert_eq!(nearest("queuedir", words), Some("queue_dir"));
        assert_eq!(nearest("colour", words), None);
        assert_eq!(nearest("", words), None);
    }
}
