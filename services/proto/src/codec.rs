//! How messages are written to streams.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Bytes of a buffer at first. It grows with the messages.
const BUFFER_BYTES: usize = 512;
/// Bytes of messages that are ready after which they are passed on; as in `tonic`.
const MAX_COLLECTED_BYTES: usize = 32 * 1024;

/// As [`tonic_prost::ProstCodec`], with small buffers: a stream has two of them for as long as it is open, and there is
/// one for each session.
#[derive(Debug)]
pub struct SmallBufferCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBufferCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBufferCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, MAX_COLLECTED_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER_BYTES, MAX_COLLECTED_BYTES))
    }
}
