//! JSON as Go's `encoding/json` writes it, since consumers of the reference may compare bytes: compact, `<`, `>`, `&`,
//! U+2028 and U+2029 escaped, and each byte that is not UTF-8 as the escape `\ufffd`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Writes one object; the members stay in the order of the calls.
pub(crate) struct ObjectWriter<'o> {
    out: &'o mut String,
    empty: bool,
}

impl<'o> ObjectWriter<'o> {
    /// Begins an object at the end of `out`.
    pub(crate) fn begin(out: &'o mut String) -> ObjectWriter<'o> {
        out.push('{');
        ObjectWriter { out, empty: true }
    }

    /// A member with a string.
    pub(crate) fn text(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        push_string(self.member(name.as_bytes()), value.as_ref());
        self
    }

    /// A member with a number.
    pub(crate) fn number(&mut self, name: &str, value: u64) -> &mut Self {
        write!(self.member(name.as_bytes()), "{value}").expect("a String takes everything");
        self
    }

    /// A member with a map of strings, sorted by the bytes of the names.
    pub(crate) fn map(&mut self, name: &str, map: &BTreeMap<Vec<u8>, Vec<u8>>) -> &mut Self {
        self.object(name, |object| {
            for (name, value) in map {
                push_string(object.member(name), value);
            }
        })
    }

    /// A member with an object, which `fill` writes.
    pub(crate) fn object(&mut self, name: &str, fill: impl FnOnce(&mut ObjectWriter<'_>)) -> &mut Self {
        let mut object = ObjectWriter::begin(self.member(name.as_bytes()));
        fill(&mut object);
        object.end();
        self
    }

    /// A member without a value.
    pub(crate) fn null(&mut self, name: &str) -> &mut Self {
        self.member(name.as_bytes()).push_str("null");
        self
    }

    /// Begins a member; the caller writes its value to what this returns.
    pub(crate) fn member(&mut self, name: &[u8]) -> &mut String {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = false;
        push_string(self.out, name);
        self.out.push(':');
        self.out
    }

    /// Ends the object.
    pub(crate) fn end(self) {
        self.out.push('}');
    }
}

/// Appends a string in quotes.
fn push_string(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_character(out, c);
        }
        for _ in chunk.invalid() {
            out.push_str("\\ufffd");
        }
    }
    out.push('"');
}

fn push_character(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\x1f' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
            write!(out, "\\u{:04x}", u32::from(c)).expect("a String takes everything");
        }
        _ => out.push(c),
    }
}

/// A text as a field of a form: a space becomes `+`, and all but `A-Za-z0-9-_.~` becomes `%XX`, slashes too.
pub(crate) fn form_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => write!(out, "%{byte:02X}").expect("a String takes everything"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string(bytes: &[u8]) -> String {
        let mut out = String::new();
        push_string(&mut out, bytes);
        out
    }

    #[test]
    fn what_go_escapes_is_escaped_and_nothing_else() {
        assert_eq!(string(b"<&>\"\\/"), r#""\u003c\u0026\u003e\"\\/""#);
        assert_eq!(string("\u{2028}\u{2029}é\u{7f}".as_bytes()), "\"\\u2028\\u2029é\u{7f}\"");
        assert_eq!(string(b"\0\x01\x08\t\n\x0b\x0c\r\x1f"), r#""\u0000\u0001\b\t\n\u000b\f\r\u001f""#);
    }

    #[test]
    fn each_byte_that_is_not_utf8_is_one_escape_and_a_real_replacement_character_stays_raw() {
        assert_eq!(string(b"caf\xe9"), r#""caf\ufffd""#);
        assert_eq!(string(b"\xe2\x82|\xff"), r#""\ufffd\ufffd|\ufffd""#);
        assert_eq!(string("\u{fffd}".as_bytes()), "\"\u{fffd}\"");
    }

    #[test]
    fn a_key_is_encoded_as_a_field_of_a_form() {
        assert_eq!(form_encoded("2031/q1/red flower~.pdf"), "2031%2Fq1%2Fred+flower~.pdf");
        assert_eq!(form_encoded("+%é*"), "%2B%25%C3%A9%2A");
    }

    proptest! {
        #[test]
        fn a_string_reads_back_as_it_was(text in ".*") {
            prop_assert_eq!(serde_json::from_str::<String>(&string(text.as_bytes())).ok(), Some(text));
        }
    }
}
