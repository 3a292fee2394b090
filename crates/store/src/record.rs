//! The record: what a frame carries. Opaque to the store; in bincode's standard encoding, see `docs/format.md`.
//!
//! The few fields are written and read here and not by bincode, whose layers took more instructions than all else that an
//! append or a read does but its checksums. The tests hold both against bincode itself.

/// A name and a value that travel with a record and reach Kafka as a record header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(bincode::Encode, bincode::BorrowDecode))]
pub struct Header<'a> {
    /// The header's name.
    pub name: &'a str,
    /// The header's value; any bytes.
    pub value: &'a [u8],
}

/// What is queued: a value with what Kafka needs beside it. Borrowed on the way in and on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(test, derive(bincode::Encode, bincode::BorrowDecode))]
pub struct Record<'a> {
    /// The topic, if it is not the target's own.
    pub topic: Option<&'a str>,
    /// The message key: records of one key keep their order.
    pub key: Option<&'a [u8]>,
    /// Headers, in order; names may repeat.
    pub headers: Vec<Header<'a>>,
    /// When the event happened: milliseconds since the Unix epoch. No decision of the store depends on it.
    pub timestamp_ms: i64,
    /// The value; may be empty.
    pub value: &'a [u8],
}

/// A frame whose checksums hold and whose payload is not a record: written by something else, or by a later version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("payload of {bytes} bytes is not a record: {reason}")]
pub struct DecodeError {
    /// The length of the payload, in bytes.
    pub bytes: usize,
    /// What the decoder met.
    pub reason: String,
}

impl Record<'_> {
    /// Appends the encoded record to `out`.
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        put_option(out, self.topic.map(str::as_bytes));
        put_option(out, self.key);
        put_number(out, self.headers.len() as u64);
        for header in &self.headers {
            put_bytes(out, header.name.as_bytes());
            put_bytes(out, header.value);
        }
        let zigzag = (self.timestamp_ms << 1) ^ (self.timestamp_ms >> 63);
        put_number(out, zigzag.cast_unsigned());
        put_bytes(out, self.value);
    }
}

fn put_option(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A number of variable length: itself, or how many bytes follow and then those.
#[inline]
fn put_number(out: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(byte @ 0..=250) => out.push(byte),
        _ => put_large(out, number),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "each arm has looked")]
fn put_large(out: &mut Vec<u8>, number: u64) {
    match number {
        0..=0xFFFF => {
            let [low, high] = (number as u16).to_le_bytes();
            out.extend_from_slice(&[251, low, high]);
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(252);
            out.extend_from_slice(&(number as u32).to_le_bytes());
        }
        _ => {
            out.push(253);
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

impl<'a> Record<'a> {
    /// Reads a record back from a frame's payload.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no record, or if bytes are left over. Never allocates more than the payload
    /// could hold.
    pub fn decode(payload: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let mut left = Left(payload);
        let record = left.record();
        match record
            .and_then(|record| if left.0.is_empty() { Ok(record) } else { Err("bytes are left over") })
        {
            Ok(record) => Ok(record),
            Err(reason) => Err(DecodeError { bytes: payload.len(), reason: reason.to_owned() }),
        }
    }
}

/// What is left to decode. Every step takes from it or is an error.
struct Left<'a>(&'a [u8]);

impl<'a> Left<'a> {
    fn record(&mut self) -> Result<Record<'a>, &'static str> {
        Ok(Record {
            topic: self.option()?.map(text).transpose()?,
            key: self.option()?,
            headers: self.headers()?,
            timestamp_ms: self
                .number()
                .map(|zigzag| (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())?,
            value: self.bytes()?,
        })
    }

    #[inline]
    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, left) = self.0.split_at_checked(count).ok_or("it ends too early")?;
        self.0 = left;
        Ok(taken)
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, left) = self.0.split_first().ok_or("it ends too early")?;
        self.0 = left;
        Ok(*byte)
    }

    #[inline]
    fn number(&mut self) -> Result<u64, &'static str> {
        match self.byte()? {
            byte @ 0..=250 => Ok(byte.into()),
            kind => self.large_number(kind),
        }
    }

    fn large_number(&mut self, kind: u8) -> Result<u64, &'static str> {
        let count = match kind {
            251 => 2,
            252 => 4,
            253 => 8,
            _ => return Err("a number of more than 64 bits"),
        };
        let mut bytes = [0; 8];
        bytes[..count].copy_from_slice(self.take(count)?);
        Ok(u64::from_le_bytes(bytes))
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let count = self.number()?;
        self.take(usize::try_from(count).map_err(|_| "it ends too early")?)
    }

    #[inline]
    fn option(&mut self) -> Result<Option<&'a [u8]>, &'static str> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            _ => Err("an option that is neither there nor not"),
        }
    }

    fn headers(&mut self) -> Result<Vec<Header<'a>>, &'static str> {
        let count = self.number()?;
        // A header has two bytes at least: nothing is allocated that the payload cannot hold.
        let count = usize::try_from(count).ok().filter(|count| *count <= self.0.len() / 2);
        let count = count.ok_or("it ends too early")?;
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            headers.push(Header { name: text(self.bytes()?)?, value: self.bytes()? });
        }
        Ok(headers)
    }
}

fn text(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|_| "a text that is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode_into(&mut out);
        out
    }

    #[test]
    fn a_record_comes_back_as_it_went_in() {
        let record = Record {
            topic: Some("events"),
            key: Some(b"bucket/\xff key"),
            headers: vec![Header { name: "a", value: b"" }, Header { name: "a", value: b"\0\x01" }],
            timestamp_ms: -1,
            value: b"{}",
        };

        assert_eq!(Record::decode(&encoded(&record)), Ok(record));
        assert_eq!(Record::decode(&encoded(&Record::default())), Ok(Record::default()));
    }

    proptest::proptest! {
        #[test]
        fn a_record_is_encoded_as_bincode_does_it_and_comes_back(
            topic in proptest::option::of(".{0,300}"),
            key in proptest::option::of(proptest::collection::vec(proptest::num::u8::ANY, 0..300)),
            value_bytes in 0_usize..70_000,
            shift in 0..64_u32,
            negative in proptest::bool::ANY,
        ) {
            let value = vec![7; value_bytes];
            let timestamp_ms = if negative { i64::MIN >> shift } else { i64::MAX >> shift };
            let headers = vec![Header { name: topic.as_deref().unwrap_or("name"), value: &value }; value_bytes % 3];
            let (topic, key) = (topic.as_deref(), key.as_deref());
            let record = Record { topic, key, headers, timestamp_ms, value: &value };

            let expected = bincode::encode_to_vec(&record, bincode::config::standard()).expect("it encodes");

            let bytes = encoded(&record);
            proptest::prop_assert_eq!(&bytes, &expected);
            proptest::prop_assert_eq!(Record::decode(&bytes), Ok(record));
        }

        #[test]
        fn any_bytes_are_to_us_what_they_are_to_bincode(
            bytes in proptest::collection::vec(
                proptest::prop_oneof![4 => 0_u8..6, 1 => 248_u8..=255, 1 => proptest::num::u8::ANY],
                0..40,
            ),
        ) {
            let limited = bincode::config::standard().with_limit::<{ 1 << 20 }>();
            let theirs: Result<(Record<'_>, usize), _> = bincode::borrow_decode_from_slice(&bytes, limited);

            let theirs = theirs.ok().filter(|(_, used)| *used == bytes.len()).map(|(record, _)| record);
            proptest::prop_assert_eq!(Record::decode(&bytes).ok(), theirs);
        }
    }

    #[test]
    fn every_cut_of_a_record_is_an_error_and_so_is_one_byte_more() {
        let bytes = encoded(&Record { key: Some(b"key"), value: b"value", ..Record::default() });

        for cut in 0..bytes.len() {
            assert!(Record::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let longer = [&bytes[..], b"!"].concat();
        assert!(Record::decode(&longer).is_err());
    }

    #[test]
    fn a_claimed_length_beyond_the_payload_allocates_nothing_and_is_an_error() {
        let absurd = [0, 0, 253, 255, 255, 255, 255, 255, 255, 255, 127];

        assert!(Record::decode(&absurd).is_err());
    }
}
