//! Compression of payloads to one connection: a stream context per connection, or each message by itself. One payload in, one message
//! out, flushed so that the client can read it at once.

use std::io::Write;

use flate2::{Compress, Compression, FlushCompress, Status, write::ZlibEncoder};
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};

/// The contexts could not be made or failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to compress a payload: {0}")]
pub struct CompressError(String);

/// How a connection's payloads are compressed.
pub enum Compressor {
    /// Text frames.
    None,
    /// `compress=zlib-stream`: each message ends with the sync flush `00 00 ff ff`.
    ZlibStream(Box<Compress>),
    /// `compress=zstd-stream`: each message is flushed, the frame never ends.
    ZstdStream(Box<Encoder<'static>>),
    /// Identify's `compress: true`: each message is a zlib stream of its own.
    ZlibMessage,
}

impl Compressor {
    /// By the `compress` parameter; `None` for one that is not known.
    pub fn of_parameter(parameter: Option<&str>) -> Option<Self> {
        match parameter {
            None | Some("") => Some(Self::None),
            Some("zlib-stream") => Some(Self::ZlibStream(Box::new(Compress::new(Compression::new(6), true)))),
            Some("zstd-stream") => Encoder::new(3).ok().map(|encoder| Self::ZstdStream(Box::new(encoder))),
            Some(_) => None,
        }
    }

    /// Whether payloads stay text.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// One payload as one message.
    ///
    /// # Errors
    /// [`CompressError`]: the context is unusable, the connection must close.
    pub fn compress(&mut self, payload: &[u8]) -> Result<Vec<u8>, CompressError> {
        match self {
            Self::None => Ok(payload.to_vec()),
            Self::ZlibStream(context) => zlib_stream(context, payload),
            Self::ZstdStream(encoder) => zstd_stream(encoder, payload),
            Self::ZlibMessage => {
                let mut encoder = ZlibEncoder::new(Vec::with_capacity(payload.len() / 2), Compression::new(6));
                encoder
                    .write_all(payload)
                    .and_then(|()| encoder.finish())
                    .map_err(|error| CompressError(error.to_string()))
            }
        }
    }
}

fn zlib_stream(context: &mut Compress, payload: &[u8]) -> Result<Vec<u8>, CompressError> {
    let mut out = Vec::with_capacity(payload.len() / 3 + 64);
    let start = context.total_in();
    loop {
        let consumed = (context.total_in() - start) as usize;
        if out.capacity() - out.len() < 32 {
            out.reserve(out.capacity().max(256));
        }
        let status = context
            .compress_vec(&payload[consumed..], &mut out, FlushCompress::Sync)
            .map_err(|error| CompressError(error.to_string()))?;
        let done = (context.total_in() - start) as usize == payload.len();
        // With room left over everything, the flush marker included, is out.
        if done && out.len() < out.capacity() && status != Status::StreamEnd {
            return Ok(out);
        }
        if status == Status::StreamEnd {
            return Err(CompressError("the stream ended".to_owned()));
        }
    }
}

fn zstd_stream(encoder: &mut Encoder<'static>, payload: &[u8]) -> Result<Vec<u8>, CompressError> {
    let failed = |error: std::io::Error| CompressError(error.to_string());
    let mut out = vec![0_u8; payload.len() / 3 + 256];
    let mut written = 0;
    let mut input = InBuffer::around(payload);
    loop {
        let mut output = OutBuffer::around_pos(&mut out[..], written);
        if input.pos() < payload.len() {
            encoder.run(&mut input, &mut output).map_err(failed)?;
        }
        let remaining = if input.pos() == payload.len() { encoder.flush(&mut output).map_err(failed)? } else { 1 };
        written = output.pos();
        if remaining == 0 {
            out.truncate(written);
            return Ok(out);
        }
        let grown = out.len() * 2;
        out.resize(grown, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::{Decompress, FlushDecompress};

    use super::*;

    fn payloads() -> Vec<Vec<u8>> {
        let random: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        vec![b"{\"op\":10}".to_vec(), b"x".repeat(200_000), random, Vec::new(), b"{\"op\":11}".to_vec()]
    }

    #[test]
    fn zlib_stream_has_one_context_and_each_message_ends_with_the_sync_flush() {
        let mut compressor = Compressor::of_parameter(Some("zlib-stream")).unwrap();
        let mut inflate = Decompress::new(true);
        for payload in payloads() {
            let message = compressor.compress(&payload).unwrap();
            if !payload.is_empty() {
                assert!(message.ends_with(&[0, 0, 0xff, 0xff]));
            }
            let mut out = Vec::with_capacity(payload.len() + 64);
            inflate.decompress_vec(&message, &mut out, FlushDecompress::Sync).unwrap();
            assert_eq!(out, payload);
        }
    }

    #[test]
    fn zstd_stream_gives_one_readable_message_per_payload_and_never_ends_the_frame() {
        use zstd::stream::raw::Decoder;
        let mut compressor = Compressor::of_parameter(Some("zstd-stream")).unwrap();
        let mut decoder = Decoder::new().unwrap();
        for payload in payloads() {
            let message = compressor.compress(&payload).unwrap();
            let mut out = vec![0; payload.len() + 64];
            let (mut input, mut output) = (InBuffer::around(&message[..]), OutBuffer::around(&mut out[..]));
            let mut hint = 1;
            while input.pos() < message.len() {
                hint = decoder.run(&mut input, &mut output).unwrap();
            }
            assert_ne!(hint, 0, "the frame never ends");
            let length = output.pos();
            assert_eq!(out[..length], payload);
        }
    }

    #[test]
    fn messages_compressed_by_themselves_are_independent() {
        let mut compressor = Compressor::ZlibMessage;
        for payload in payloads() {
            let message = compressor.compress(&payload).unwrap();
            let mut out = Vec::new();
            flate2::read::ZlibDecoder::new(&message[..]).read_to_end(&mut out).unwrap();
            assert_eq!(out, payload);
        }
    }

    #[test]
    fn an_unknown_stream_is_not_guessed() {
        assert!(Compressor::of_parameter(Some("brotli")).is_none());
    }
}
