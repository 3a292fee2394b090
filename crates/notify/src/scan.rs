//! A strict scanner of JSON (RFC 8259): checks, and removes insignificant white space, in one pass and without
//! recursion. It never changes a string, a number or the order of members, and holds nothing but positions.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::EnvelopeError;

/// Arrays and objects inside one another, the outermost counted. As many as common parsers take.
pub(crate) const DEPTH_MAX: usize = 128;

pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Where what is kept begins: past the white space before the value.
    kept_from: usize,
    /// What is kept so far, once white space inside of the value was met.
    minified: String,
}

impl<'a> Scanner<'a> {
    /// Begins at the first byte of the value.
    pub(crate) fn new(text: &'a str) -> Scanner<'a> {
        let at = text.len() - text.trim_start_matches(is_space_char).len();
        Scanner { text, at, kept_from: at, minified: String::new() }
    }

    /// The byte position of what comes next.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Steps over `byte` if it comes next.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Drops white space.
    pub(crate) fn space(&mut self) {
        let start = self.at;
        while self.peek().is_some_and(|byte| is_space_char(char::from(byte))) {
            self.at += 1;
        }
        if self.at > start {
            self.minified.push_str(&self.text[self.kept_from..start]);
            self.kept_from = self.at;
        }
    }

    /// Ends the scan: the value without insignificant white space, borrowed if there was none inside of it.
    pub(crate) fn finish(mut self) -> Result<Cow<'a, str>, EnvelopeError> {
        let end = self.at;
        if let Some(junk) = self.text[end..].find(|c| !is_space_char(c)) {
            return Err(EnvelopeError::Trailing { position: end + junk });
        }
        let last = &self.text[self.kept_from..end];
        if self.minified.is_empty() {
            return Ok(Cow::Borrowed(last));
        }
        self.minified.push_str(last);
        Ok(Cow::Owned(self.minified))
    }

    /// Steps over one value of any kind; `outside` is how many arrays and objects it is inside of.
    pub(crate) fn value(&mut self, outside: usize) -> Result<(), EnvelopeError> {
        // One bit for each array or object that is open, the innermost lowest: set for an object.
        let mut objects: u128 = 0;
        let mut depth = outside;
        loop {
            self.space();
            let opened = match self.peek() {
                Some(byte @ (b'{' | b'[')) => {
                    if depth == DEPTH_MAX {
                        return Err(EnvelopeError::TooDeep { position: self.at, max: DEPTH_MAX });
                    }
                    depth += 1;
                    objects = objects << 1 | u128::from(byte == b'{');
                    self.at += 1;
                    true
                }
                Some(b'"') => self.string().map(|_| false)?,
                Some(b'-' | b'0'..=b'9') => self.number().map(|()| false)?,
                _ => self.literal().map(|()| false)?,
            };
            if self.close(&mut objects, &mut depth, outside, opened)? {
                return Ok(());
            }
        }
    }

    /// After a value, or just inside of what was `opened`: closes what ends here, and says whether the outermost value
    /// has. If not, the next value follows.
    fn close(
        &mut self,
        objects: &mut u128,
        depth: &mut usize,
        outside: usize,
        mut opened: bool,
    ) -> Result<bool, EnvelopeError> {
        while *depth > outside {
            self.space();
            let in_object = *objects & 1 == 1;
            if self.take(if in_object { b'}' } else { b']' }) {
                *objects >>= 1;
                *depth -= 1;
                opened = false;
                continue;
            }
            if !opened && !self.take(b',') {
                return Err(self.unexpected(if in_object { "`,` or `}`" } else { "`,` or `]`" }));
            }
            if in_object {
                self.space();
                self.name()?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Steps over a member's name and the colon; gives the place of the name with its quotes.
    pub(crate) fn name(&mut self) -> Result<Range<usize>, EnvelopeError> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a member's name in double quotes"));
        }
        let name = self.string()?;
        self.space();
        if !self.take(b':') {
            return Err(self.unexpected("`:`"));
        }
        Ok(name)
    }

    /// Steps over a string; gives its place with the quotes.
    pub(crate) fn string(&mut self) -> Result<Range<usize>, EnvelopeError> {
        let start = self.at;
        self.at += 1;
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
            self.at += plain.unwrap_or(rest.len());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                Some(b'\\') => self.escape()?,
                Some(_) => {
                    return Err(self.unexpected("an escape: control characters are not taken in a string"));
                }
                None => return Err(self.unexpected("the end of the string, `\"`")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), EnvelopeError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.unexpected("four hexadecimal digits after `\\u`"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.unexpected("one of `\"\\/bfnrtu` after a backslash")),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), EnvelopeError> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), EnvelopeError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn literal(&mut self) -> Result<(), EnvelopeError> {
        for literal in ["true", "false", "null"] {
            if self.text.as_bytes()[self.at..].starts_with(literal.as_bytes()) {
                self.at += literal.len();
                return Ok(());
            }
        }
        Err(self.unexpected("a value"))
    }

    /// What stands here is not what must.
    pub(crate) fn unexpected(&self, expected: &'static str) -> EnvelopeError {
        // The scanner stands between characters wherever it stops: all that it steps over by bytes is in strings, and
        // what it stops at there is ASCII.
        let found = self.text.get(self.at..).and_then(|rest| rest.chars().next());
        let found = found.map_or_else(|| "the end of the text".to_owned(), |c| format!("{c:?}"));
        EnvelopeError::Json { position: self.at, found, expected }
    }
}

fn is_space_char(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn minified(text: &str) -> Result<Cow<'_, str>, EnvelopeError> {
        let mut scanner = Scanner::new(text);
        scanner.value(0)?;
        scanner.finish()
    }

    #[test]
    fn only_white_space_outside_of_strings_goes() {
        let text =
            " { \"a b\" :\t[ 1.50E+01 , \"\\ufffd \u{fffd}\\/\" , { } , [\n] ] ,\r\n\"a b\": null } \n";

        let expected = "{\"a b\":[1.50E+01,\"\\ufffd \u{fffd}\\/\",{},[]],\"a b\":null}";
        assert_eq!(minified(text).as_deref(), Ok(expected));
    }

    #[test]
    fn a_text_that_is_minified_already_is_borrowed() {
        for text in ["{\"a\":[1,2]}", " \n{\"a\":[1,2]}\r\n"] {
            assert!(matches!(minified(text), Ok(Cow::Borrowed("{\"a\":[1,2]}"))));
        }
        assert!(matches!(minified("[ ]"), Ok(Cow::Owned(text)) if text == "[]"));
    }

    #[test]
    fn nesting_is_taken_up_to_the_limit_and_no_stack_is_needed_to_refuse_more() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);

        assert!(minified(&nested(DEPTH_MAX)).is_ok());
        let error = minified(&nested(DEPTH_MAX + 1)).expect_err("too deep");
        assert_eq!(error, EnvelopeError::TooDeep { position: DEPTH_MAX, max: DEPTH_MAX });
        assert!(minified(&"[".repeat(10_000_000)).is_err());
        assert!(minified(&"{\"a\":".repeat(1_000_000)).is_err());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_position_and_what_was_expected() {
        for (text, position, expected) in [
            ("", 0, "a value"),
            ("nul", 0, "a value"),
            ("\u{feff}{}", 0, "a value"),
            ("[1 2]", 3, "`,` or `]`"),
            ("[1,]", 3, "a value"),
            ("{\"a\" 1}", 5, "`:`"),
            ("{\"a\":1,}", 7, "a member's name in double quotes"),
            ("{'a':1}", 1, "a member's name in double quotes"),
            ("\"a", 2, "the end of the string, `\"`"),
            ("\"\\x\"", 2, "one of `\"\\/bfnrtu` after a backslash"),
            ("\"\\u12é\"", 5, "four hexadecimal digits after `\\u`"),
            ("[-]", 2, "a digit"),
            ("[01]", 2, "`,` or `]`"),
            ("1.e5", 2, "a digit"),
        ] {
            match minified(text) {
                Err(EnvelopeError::Json { position: at, expected: what, .. }) => {
                    assert_eq!((at, what), (position, expected), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(minified("{} x"), Err(EnvelopeError::Trailing { position: 3 }));
    }

    fn json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "(true|false|null|-?[0-9]{1,3}(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?)",
            ".{0,6}".prop_map(|text| serde_json::to_string(&text).expect("a string")),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|items| format!("[ {} ]", items.join(" ,\n"))),
                prop::collection::vec(("[a-c\\\\n\"]{0,3}", inner), 0..4).prop_map(|members| {
                    let name = |text: &String| serde_json::to_string(text).expect("a string");
                    let members: Vec<_> =
                        members.iter().map(|(n, v)| format!("{}\t: {v}", name(n))).collect();
                    format!("{{{}\r\n}}", members.join(" , "))
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]
        #[test]
        fn what_is_taken_is_what_serde_json_takes(text in "[\\[\\]{}:,\"\\\\ 0-9a-fltrue.eE+\\-nul\u{0}é]{0,14}") {
            let expected = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();

            prop_assert_eq!(minified(&text).is_ok(), expected, "{}", text);
        }

        #[test]
        fn the_minified_text_means_the_same_and_stays_as_it_is(text in json()) {
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
            let minified_text = minified(&text);
            prop_assume!(value(&text).is_some());
            let once = minified_text.expect("JSON").into_owned();

            prop_assert_eq!(value(&once), value(&text));
            prop_assert!(matches!(minified(&once), Ok(Cow::Borrowed(again)) if again == once));
        }

        #[test]
        fn a_cut_of_a_text_never_panics(text in json(), cut in 0.0..1.0) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "any place will do")]
            let mut at = (text.len() as f64 * cut) as usize;
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            let _ = minified(&text[..at]);
        }
    }
}
