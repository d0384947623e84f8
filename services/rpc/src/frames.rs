//! Length-delimited frames of encoded messages.

use std::io;
use std::marker::PhantomData;

use bytes::{BufMut, BytesMut};
use prost::Message;
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

/// Bytes of a frame's length.
const HEADER_BYTES: usize = 4;

/// What has the encoding of a message of type `M`: the message, or the parts of one, which are then not put together
/// before they are in the frame.
pub trait EncodesAs<M> {
    /// Returns the length of the encoding.
    fn encoded_bytes(&self) -> usize;

    /// Appends the encoding.
    fn encode_to(&self, frame: &mut BytesMut);
}

impl<M: Message> EncodesAs<M> for M {
    fn encoded_bytes(&self) -> usize {
        self.encoded_len()
    }

    fn encode_to(&self, frame: &mut BytesMut) {
        self.encode_raw(frame);
    }
}

/// Encodes messages of type `Out`, and decodes messages of type `In`.
pub(crate) struct FrameCodec<In, Out> {
    lengths: LengthDelimitedCodec,
    max_bytes: usize,
    messages: PhantomData<fn(Out) -> In>,
}

impl<In, Out> FrameCodec<In, Out> {
    /// Creates a codec for frames of at most so many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let lengths = LengthDelimitedCodec::builder().max_frame_length(max_bytes).new_codec();
        Self { lengths, max_bytes, messages: PhantomData }
    }
}

impl<In: Message + Default, Out> Decoder for FrameCodec<In, Out> {
    /// `None` for an empty frame, which only shows that the peer is alive.
    type Item = Option<In>;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Option<In>>> {
        let Some(frame) = self.lengths.decode(buffer)? else { return Ok(None) };
        if frame.is_empty() {
            return Ok(Some(None));
        }
        // Fields of bytes share the frame's memory.
        let message = In::decode(frame.freeze()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some(Some(message)))
    }
}

impl<In, Out, M: EncodesAs<Out>> Encoder<M> for FrameCodec<In, Out> {
    type Error = io::Error;

    fn encode(&mut self, message: M, buffer: &mut BytesMut) -> io::Result<()> {
        let bytes = message.encoded_bytes();
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= self.max_bytes).ok_or_else(|| {
            let reason = format!("a frame has {bytes} bytes and may have {}", self.max_bytes);
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        buffer.reserve(HEADER_BYTES + bytes);
        buffer.put_u32(length);
        message.encode_to(buffer);
        Ok(())
    }
}
