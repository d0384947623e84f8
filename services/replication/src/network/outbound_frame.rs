//! A frame of requests to a peer. Encoded as [`RaftMessages`]; the blocks of entries are copied once, into the frame.

use bytes::{BufMut, BytesMut};
use holdfast_proto::internal::{RaftMessage, RaftMessages};
use holdfast_rpc::EncodesAs;
use prost::{Message, length_delimiter_len};

use crate::encoded::Encoded;

/// The keys of `RaftMessages.messages` and `RaftMessage.body`: number 1 and 5, both with a length.
const MESSAGES_KEY: u8 = (1 << 3) | 2;
const BODY_KEY: u8 = (5 << 3) | 2;

/// Requests that share a frame.
pub(crate) struct OutboundFrame {
    pub(crate) messages: Vec<OutboundMessage>,
    pub(crate) disk_is_full: bool,
}

/// A request: `head` is all but the body.
pub(crate) struct OutboundMessage {
    pub(crate) head: RaftMessage,
    pub(crate) body: Encoded,
}

impl OutboundFrame {
    /// Returns everything but the messages.
    fn rest(&self) -> RaftMessages {
        RaftMessages { disk_is_full: self.disk_is_full, ..RaftMessages::default() }
    }
}

impl OutboundMessage {
    fn bytes(&self) -> usize {
        self.head.encoded_len() + field_bytes(self.body.len())
    }
}

impl EncodesAs<RaftMessages> for OutboundFrame {
    fn encoded_bytes(&self) -> usize {
        let messages: usize = self.messages.iter().map(|message| field_bytes(message.bytes())).sum();
        messages + self.rest().encoded_len()
    }

    fn encode_to(&self, frame: &mut BytesMut) {
        for message in &self.messages {
            begin_field(frame, MESSAGES_KEY, message.bytes());
            message.head.encode_raw(frame);
            begin_field(frame, BODY_KEY, message.body.len());
            message.body.put_to(frame);
        }
        self.rest().encode_raw(frame);
    }
}

fn field_bytes(bytes: usize) -> usize {
    size_of::<u8>() + length_delimiter_len(bytes) + bytes
}

fn begin_field(frame: &mut BytesMut, key: u8, bytes: usize) {
    frame.put_u8(key);
    prost::encode_length_delimiter(bytes, frame).expect("the frame grows");
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use holdfast_proto::internal::Kind;

    use super::*;

    fn message(call: u64, kind: Kind) -> RaftMessage {
        RaftMessage {
            from: 10,
            to: 300,
            call,
            kind: kind.into(),
            stream: 7,
            clock_ms: 1 << 40,
            ..RaftMessage::default()
        }
    }

    #[test]
    fn a_frame_is_read_as_the_messages_that_it_was_made_of() {
        for disk_is_full in [false, true] {
            let bodies = [0, 1, 127, 128, 300_000].map(|length| Bytes::from(vec![9; length]));
            let kinds = [Kind::Heartbeat, Kind::Vote, Kind::Append, Kind::Append, Kind::Append];
            let heads: Vec<RaftMessage> = kinds.into_iter().zip(1..).map(|(kind, call)| message(call, kind)).collect();
            let sent = heads.iter().zip(&bodies);
            let sent = sent.map(|(head, body)| OutboundMessage { head: head.clone(), body: body.clone().into() });
            let frame = OutboundFrame { messages: sent.collect(), disk_is_full };
            let mut bytes = BytesMut::new();
            frame.encode_to(&mut bytes);
            assert_eq!(frame.encoded_bytes(), bytes.len());
            let messages = heads.into_iter().zip(bodies).map(|(head, body)| RaftMessage { body, ..head }).collect();
            let expected = RaftMessages { messages, disk_is_full, ..RaftMessages::default() };
            // A message needs no more bytes than it would in a frame of `RaftMessages`, an empty body aside.
            assert_eq!(bytes.len(), expected.encoded_len() + field_bytes(0));
            assert_eq!(RaftMessages::decode(bytes.freeze()).unwrap(), expected);
        }
    }
}
