//! Key and bucket patterns. A pattern is cut at its stars once; matching then walks over the pieces, so the cost is at
//! most the product of the two lengths, whatever the pattern.

use std::fmt;
use std::str::FromStr;

use crate::error::PatternError;

/// The longest prefix or suffix, in bytes: as long as the longest object key of S3.
const PART_BYTES_MAX: usize = 1024;

/// Which keys a rule wants, from a prefix and a suffix, as in the reference.
///
/// The pattern is `prefix*suffix`, over bytes. `*` stands for any run of bytes, also none and also `/`; `?` for any one
/// byte. Both are live inside of prefix and suffix, and there is no escape. Two surprises of the reference are kept:
/// prefix and suffix may not overlap in the key (prefix `ab`, suffix `ba` does not match `aba`), and a key that ends
/// where the pattern has a `?` matches, whatever comes after it (prefix `data?` matches `data`).
///
/// ```
/// use tidegate_notify::KeyPattern;
///
/// let pattern = KeyPattern::new("photos/", ".jpg")?;
/// assert!(pattern.matches("photos/2031/a.jpg"));
/// assert!(!pattern.matches("photo/a.jpg"));
/// # Ok::<(), tidegate_notify::error::PatternError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPattern {
    prefix: String,
    suffix: String,
    pieces: Pieces,
}

impl KeyPattern {
    /// The pattern of a prefix and a suffix; both empty match every key.
    ///
    /// # Errors
    /// [`PatternError::TooLong`] if one of them is longer than 1024 bytes, the longest object key.
    pub fn new(prefix: &str, suffix: &str) -> Result<KeyPattern, PatternError> {
        for (part, text) in [("prefix", prefix), ("suffix", suffix)] {
            if text.len() > PART_BYTES_MAX {
                return Err(PatternError::TooLong { part, bytes: text.len(), max: PART_BYTES_MAX });
            }
        }
        let pieces = Pieces::cut(&format!("{prefix}*{suffix}"), Question::AnyByteOrTheEnd);
        Ok(KeyPattern { prefix: prefix.to_owned(), suffix: suffix.to_owned(), pieces })
    }

    /// Whether an object's key, decoded as the client sent it, is wanted.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        self.pieces.matches(key.as_bytes())
    }

    /// The prefix, as given.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The suffix, as given.
    #[must_use]
    pub fn suffix(&self) -> &str {
        &self.suffix
    }
}

impl Default for KeyPattern {
    /// Every key.
    fn default() -> KeyPattern {
        let pieces = Pieces::cut("*", Question::AnyByteOrTheEnd);
        KeyPattern { prefix: String::new(), suffix: String::new(), pieces }
    }
}

/// The pattern as the reference prints it, `photos/*.jpg`: one star for a run of stars.
impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut previous = ' ';
        for c in self.prefix.chars().chain(['*']).chain(self.suffix.chars()) {
            if c != '*' || previous != '*' {
                write!(f, "{c}")?;
            }
            previous = c;
        }
        Ok(())
    }
}

/// Which buckets a rule is for: a name, or a pattern in which `*` stands for any run of characters. `*` alone is every
/// bucket, also one that is made later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPattern {
    text: String,
    pieces: Pieces,
}

impl BucketPattern {
    /// The longest pattern, in bytes. Names of buckets have 63 at most in S3; other stores allow 255.
    pub const BYTES_MAX: usize = 255;

    /// Whether a bucket is meant.
    #[must_use]
    pub fn matches(&self, bucket: &str) -> bool {
        self.pieces.matches(bucket.as_bytes())
    }

    /// The pattern's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for BucketPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<BucketPattern, PatternError> {
        if text.is_empty() {
            return Err(PatternError::EmptyBucket);
        }
        if text.len() > BucketPattern::BYTES_MAX {
            return Err(PatternError::TooLong {
                part: "bucket",
                bytes: text.len(),
                max: BucketPattern::BYTES_MAX,
            });
        }
        match text.chars().find(|c| matches!(c, '/' | '?') || c.is_control() || c.is_whitespace()) {
            Some(character) => Err(PatternError::BucketCharacter { character, pattern: text.to_owned() }),
            None => Ok(BucketPattern { text: text.to_owned(), pieces: Pieces::cut(text, Question::Itself) }),
        }
    }
}

impl fmt::Display for BucketPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What `?` means in a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Itself,
    AnyByteOrTheEnd,
}

/// A pattern, cut at its stars: the first piece stands at the start, the last at the end, the others in between. One
/// piece is a pattern without a star.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pieces {
    pieces: Vec<Box<[u8]>>,
    question: Question,
}

impl Pieces {
    fn cut(pattern: &str, question: Question) -> Pieces {
        let cuts: Vec<&str> = pattern.split('*').collect();
        let last = cuts.len() - 1;
        // An empty piece between two stars says nothing; at either end it says that a star stands there.
        let kept = cuts.iter().enumerate().filter(|(i, piece)| *i == 0 || *i == last || !piece.is_empty());
        Pieces { pieces: kept.map(|(_, piece)| piece.as_bytes().into()).collect(), question }
    }

    fn matches(&self, text: &[u8]) -> bool {
        let last = self.pieces.len() - 1;
        let mut rest = text;
        for (index, piece) in self.pieces.iter().enumerate() {
            let (at_start, at_end) = (index == 0, index == last);
            if self.text_ends_at_a_question(piece, rest, at_start) {
                return true;
            }
            // Taking the leftmost place of each piece leaves the longest rest for those after it.
            let after = match (at_start, at_end) {
                (true, true) => (rest.len() == piece.len() && self.same(piece, rest)).then_some(rest.len()),
                (true, false) => self.starts(rest, piece).then_some(piece.len()),
                (false, true) => self.ends(rest, piece).then_some(rest.len()),
                (false, false) => self.find(rest, piece).map(|place| place + piece.len()),
            };
            match after {
                Some(after) => rest = &rest[after..],
                None => return false,
            }
        }
        true
    }

    /// The reference's rule of `?`: a text that ends where the pattern has a `?` matches. `rest` is the longest that
    /// can be left for this piece, so looking at its end is looking at every way to get here.
    fn text_ends_at_a_question(&self, piece: &[u8], rest: &[u8], at_start: bool) -> bool {
        if self.question == Question::Itself {
            return false;
        }
        piece.iter().enumerate().filter(|(_, byte)| **byte == b'?').any(|(before, _)| {
            let long_enough = if at_start { rest.len() == before } else { rest.len() >= before };
            long_enough && self.same(&piece[..before], &rest[rest.len() - before..])
        })
    }

    fn same(&self, piece: &[u8], text: &[u8]) -> bool {
        let any = self.question == Question::AnyByteOrTheEnd;
        piece.iter().zip(text).all(|(p, t)| p == t || (any && *p == b'?'))
    }

    fn starts(&self, text: &[u8], piece: &[u8]) -> bool {
        text.len() >= piece.len() && self.same(piece, text)
    }

    fn ends(&self, text: &[u8], piece: &[u8]) -> bool {
        text.len() >= piece.len() && self.same(piece, &text[text.len() - piece.len()..])
    }

    fn find(&self, text: &[u8], piece: &[u8]) -> Option<usize> {
        text.windows(piece.len()).position(|window| self.same(piece, window))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(prefix: &str, suffix: &str) -> KeyPattern {
        KeyPattern::new(prefix, suffix).expect("short enough")
    }

    #[test]
    fn every_filter_vector_of_the_reference_matches_as_recorded() {
        let table = include_str!("../tests/vectors/filter-pattern-vectors.tsv");
        for line in table.lines().skip(1) {
            let row: Vec<&str> = line.split('\t').collect();
            let pattern = pattern(row[0], row[1]);

            assert_eq!(pattern.to_string(), row[2], "{line}");
            assert_eq!(pattern.matches(row[3]), row[4] == "true", "{line}");
        }
    }

    #[test]
    fn a_question_mark_takes_one_byte_of_a_character_or_the_end_of_the_key() {
        assert!(pattern("?", "b").matches("ab"));
        assert!(!pattern("a?c", "z").matches("abcdy"));
        assert!(pattern("a??", "x").matches("aéx"));
        // The reference answers at the first `?` that meets the end, and looks no further.
        assert!(pattern("data?", ".jpg").matches("data"));
        assert!(pattern("", "a?").matches("xaba"));
    }

    #[test]
    fn a_pattern_made_to_cost_exponential_time_costs_its_length_times_the_keys() {
        let hostile = pattern(&"a*".repeat(512), &"*a?".repeat(300));
        let key = "a".repeat(1023) + "b";
        for _ in 0..100 {
            assert!(!pattern(&"a*".repeat(512), "c").matches(&key));
            assert!(hostile.matches(&"a".repeat(1024)));
        }
    }

    #[test]
    fn a_part_longer_than_any_key_is_refused() {
        let long = "x".repeat(1025);

        assert!(KeyPattern::new(&long[1..], "").is_ok());
        let error = KeyPattern::new("", &long).expect_err("too long").to_string();
        assert_eq!(error, "suffix of 1025 bytes: an object key has at most 1024, so it would never match");
    }

    #[test]
    fn a_bucket_pattern_is_a_name_or_has_stars() {
        let matches =
            |pattern: &str, bucket| pattern.parse::<BucketPattern>().expect(pattern).matches(bucket);

        assert!(matches("images", "images") && !matches("images", "images2"));
        assert!(
            matches("*", "anything") && matches("img-*-eu", "img-1-eu") && !matches("img-*-eu", "img-eu")
        );
        for bad in ["", "a/b", "a?", "a b", &"x".repeat(256)] {
            assert!(bad.parse::<BucketPattern>().is_err(), "{bad:?}");
        }
    }

    /// The meaning of a pattern, the slow way: which positions of the key can be reached after each of its bytes.
    fn by_definition(pattern: &[u8], key: &[u8]) -> bool {
        let mut reached = vec![false; key.len() + 1];
        reached[0] = true;
        for byte in pattern {
            let mut next = vec![false; key.len() + 1];
            for at in (0..=key.len()).filter(|at| reached[*at]) {
                match byte {
                    b'*' => next[at..].fill(true),
                    b'?' if at == key.len() => return true,
                    b'?' => next[at + 1] = true,
                    byte if key.get(at) == Some(byte) => next[at + 1] = true,
                    _ => {}
                }
            }
            reached = next;
        }
        reached[key.len()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn a_pattern_matches_what_its_definition_matches(
            prefix in "[ab?*]{0,8}", suffix in "[ab?*]{0,8}", key in "[ab]{0,10}",
        ) {
            let expected = by_definition(format!("{prefix}*{suffix}").as_bytes(), key.as_bytes());

            prop_assert_eq!(pattern(&prefix, &suffix).matches(&key), expected);
        }
    }
}
