//! The record: what a frame carries. Opaque to the store; encoded with bincode, always decoded with a limit.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::{BorrowDecode, Encode};

/// More than any record may be: the bound on what decoding will ever ask for. `record_bytes_max` is below it.
pub(crate) const RECORD_BYTES_LIMIT: usize = 1 << 30;

/// bincode's standard encoding (little-endian, variable-length integers) with the limit; see `docs/format.md`.
const ENCODING: Configuration<LittleEndian, Varint, Limit<RECORD_BYTES_LIMIT>> =
    bincode::config::standard().with_limit::<RECORD_BYTES_LIMIT>();

/// A name and a value that travel with a record and reach Kafka as a record header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, BorrowDecode)]
pub struct Header<'a> {
    /// The header's name.
    pub name: &'a str,
    /// The header's value; any bytes.
    pub value: &'a [u8],
}

/// What is queued: a value with what Kafka needs beside it. Borrowed on the way in and on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, BorrowDecode)]
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
        struct Out<'v>(&'v mut Vec<u8>);
        impl bincode::enc::write::Writer for Out<'_> {
            fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
                self.0.extend_from_slice(bytes);
                Ok(())
            }
        }
        bincode::encode_into_writer(self, Out(out), ENCODING)
            .expect("writing to memory does not fail, and slices and strings always encode");
    }
}

impl<'a> Record<'a> {
    /// Reads a record back from a frame's payload.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no record, or if bytes are left over. Never allocates more than the payload
    /// could hold.
    pub fn decode(payload: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let bytes = payload.len();
        match bincode::borrow_decode_from_slice(payload, ENCODING) {
            Ok((record, used)) if used == bytes => Ok(record),
            Ok((_, used)) => {
                Err(DecodeError { bytes, reason: format!("the record ends after {used} bytes") })
            }
            Err(error) => Err(DecodeError { bytes, reason: error.to_string() }),
        }
    }
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
