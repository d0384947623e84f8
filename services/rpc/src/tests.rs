//! Connections over sockets and in memory, with peers that keep to the rules and peers that do not.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use holdfast_auth::{ClusterSecret, ServiceSigner, ServiceVerifier};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::{Answer, Call, CallFrame, Handshake, HandshakeReply, StatusAnswer, call};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::codec::Framed;

use crate::frames::FrameCodec;
use crate::protocol::WIRE_VERSION;
use crate::responder::{CALL_LIMITS, MAX_CALLS_OF_ACCOUNT};
use crate::*;

/// Longer than anything takes on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Answers a command with what `act` says, and a deferrable call when it is cancelled.
struct Handler<F>(F);

impl<F: Fn(&Call) -> BoxFuture<'static, Outcome> + Send + Sync + 'static> CallHandler for Handler<F> {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let acting = (self.0)(&call);
        async move { Answer { id: call.id, outcome: Some(acting.await), ..Answer::default() } }.boxed()
    }

    fn call_deferrable(&self, call: Call, caller: ReplyHandle) -> BoxFuture<'static, Option<Answer>> {
        async move {
            caller.defer().await;
            tokio::select! {
                () = caller.control.cancelled.cancelled() => {}
                () = caller.disconnected.cancelled() => return None,
            }
            let outcome = Some(Outcome::NotProposed("the caller gave up".to_owned()));
            Some(Answer { id: call.id, outcome, ..Answer::default() })
        }
        .boxed()
    }

    fn status(&self) -> StatusAnswer {
        StatusAnswer::default()
    }

    fn not_ready(&self) -> Option<String> {
        None
    }
}

fn reply(bytes: usize) -> Outcome {
    Outcome::Reply(Bytes::from(vec![7; bytes]))
}

/// A server whose connections come through memory.
struct World {
    secret: ClusterSecret,
    accept: mpsc::UnboundedSender<(DuplexStream, bool)>,
    http: mpsc::UnboundedReceiver<ByteStream>,
    callers: Arc<Callers>,
}

impl World {
    fn start(act: impl Fn(&Call) -> BoxFuture<'static, Outcome> + Send + Sync + 'static) -> Self {
        let secret = ClusterSecret::generate().unwrap();
        let callers = Arc::<Callers>::default();
        let acceptor = Acceptor::new(Arc::new(ServiceVerifier::new(&secret)), Arc::clone(&callers));
        let acceptor = acceptor.with(Responder::new(Arc::new(Handler(act))));
        let (accept, accepted) = mpsc::unbounded_channel();
        let accepting = stream::unfold(accepted, |mut accepted: mpsc::UnboundedReceiver<(DuplexStream, bool)>| async {
            let (stream, has_cert) = accepted.recv().await?;
            Some((Incoming { stream: Box::new(stream), peer: (), has_cert, counted: None }, accepted))
        });
        let (to_http, http) = mpsc::unbounded_channel();
        tokio::spawn(Arc::new(acceptor).serve(accepting, move |stream, ()| {
            let _ = to_http.send(stream);
            async {}
        }));
        Self { secret, accept, http, callers }
    }

    /// Connects as TCP would.
    fn open(&self, buffer: usize, has_cert: bool) -> DuplexStream {
        let (ours, theirs) = duplex(buffer);
        self.accept.send((theirs, has_cert)).unwrap();
        ours
    }

    fn identity(&self, caller: &str, connection: u64) -> Identity {
        Identity::new(caller, 0, ServiceSigner::new(&self.secret, "test")).with_next_connection(connection)
    }

    async fn connect(&self, connection: u64) -> Result<ClientConnection<Calls>, ConnectError> {
        let stream = Box::new(self.open(64 << 10, true));
        identify::<Calls>(stream, &self.identity("caller", connection), &()).await.map(|(connection, ())| connection)
    }

    /// Sends a handshake by hand; returns why it is rejected.
    async fn rejection(&self, change: impl FnOnce(&mut Handshake)) -> String {
        let mut stream = self.open(64 << 10, true);
        let token = ServiceSigner::new(&self.secret, "test").token().unwrap().expose().to_owned();
        let mut handshake = Handshake {
            protocol: Calls::NAME.to_owned(),
            wire_version: WIRE_VERSION,
            release: "0.0.9".to_owned(),
            caller: "caller".to_owned(),
            connection: 1,
            token,
            ..Handshake::default()
        };
        change(&mut handshake);
        stream.write_all(&PREAMBLE).await.unwrap();
        let mut preamble = [0; 8];
        stream.read_exact(&mut preamble).await.unwrap();
        let mut framed = Framed::new(stream, FrameCodec::<HandshakeReply, Handshake>::new(1 << 20));
        futures::SinkExt::send(&mut framed, handshake).await.unwrap();
        framed.next().await.unwrap().unwrap().unwrap().rejected
    }
}

fn command(id: u64, bytes: usize) -> Call {
    let body = Some(call::Body::Command(Bytes::from(vec![1; bytes])));
    Call { id, deadline_ms: 60_000, body, ..Call::default() }
}

fn frame(calls: Vec<Call>) -> CallFrame {
    CallFrame { calls, ..CallFrame::default() }
}

/// Receives the next frame's answers.
async fn answers(connection: &mut ClientConnection<Calls>) -> io::Result<Vec<Answer>> {
    let receiving = async {
        loop {
            if let Event::Received(frame) = connection.next(true).await? {
                return Ok(frame.answers);
            }
        }
    };
    timeout(MAX_WAIT, receiving).await.unwrap()
}

async fn ids(connection: &mut ClientConnection<Calls>, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    while ids.len() < count {
        ids.extend(answers(connection).await.unwrap().iter().map(|answer| answer.id));
    }
    ids.sort_unstable();
    ids
}

fn echo() -> World {
    World::start(|_| async { reply(3) }.boxed())
}

#[tokio::test]
async fn calls_of_one_frame_are_answered_and_commands_that_are_ready_share_a_frame() {
    let world = echo();
    let mut connection = world.connect(1).await.unwrap();
    connection.send(frame((1..=100).map(|id| command(id, 10)).collect())).unwrap();
    let answered = answers(&mut connection).await.unwrap();
    assert_eq!(answered.len(), 100);
    assert!(answered.iter().all(|answer| answer.outcome == Some(reply(3))));
}

#[tokio::test]
async fn http_gets_all_of_what_the_peer_sent() {
    let mut world = echo();
    let mut stream = world.open(1024, true);
    stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let mut served = world.http.recv().await.unwrap();
    let mut request = [0; 23];
    served.read_exact(&mut request).await.unwrap();
    assert_eq!(&request, b"GET /healthz HTTP/1.1\r\n");
    served.write_all(b"HTTP/1.1 200 OK").await.unwrap();
    let mut response = [0; 15];
    stream.read_exact(&mut response).await.unwrap();
    assert_eq!(&response, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn strangers_are_rejected_with_what_to_do() {
    let world = echo();
    let stranger = ClusterSecret::generate().unwrap();
    let token = ServiceSigner::new(&stranger, "test").token().unwrap().expose().to_owned();
    let rejected = world.rejection(|handshake| handshake.token = token).await;
    assert!(rejected.contains("no service token of this cluster"), "{rejected}");
    let rejected = world.rejection(|handshake| handshake.wire_version = 9).await;
    assert!(rejected.contains("release 0.0.9") && rejected.contains("version 9"), "{rejected}");
    assert!(rejected.contains(env!("CARGO_PKG_VERSION")) && rejected.contains("the same release"), "{rejected}");
    let rejected = world.rejection(|handshake| handshake.protocol = "gossip".to_owned()).await;
    assert!(rejected.contains("\"gossip\""), "{rejected}");

    let stream = Box::new(world.open(1024, false));
    let error = identify::<Calls>(stream, &world.identity("caller", 1), &()).await.err().unwrap();
    assert!(error.to_string().contains("shows no certificate"), "{error}");
}

#[tokio::test]
async fn another_framing_is_rejected_by_name() {
    let world = echo();
    let mut stream = world.open(1024, true);
    stream.write_all(b"\0hffrm\0\x02").await.unwrap();
    stream.read_exact(&mut [0; 8]).await.unwrap();
    let mut framed = Framed::new(stream, FrameCodec::<HandshakeReply, Handshake>::new(1 << 20));
    let rejected = framed.next().await.unwrap().unwrap().unwrap().rejected;
    assert!(rejected.contains("another release"), "{rejected}");
}

#[tokio::test]
async fn a_server_of_another_protocol_is_named_as_such() {
    let world = echo();
    let (ours, mut theirs) = duplex(1024);
    theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
    let error = identify::<Calls>(Box::new(ours), &world.identity("caller", 1), &()).await.err().unwrap();
    assert!(error.to_string().contains("another protocol") && error.to_string().contains("release"), "{error}");
}

#[tokio::test]
async fn garbage_and_oversized_handshakes_end_the_connection() {
    let world = echo();
    for (sent, says) in [
        (vec![0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff], "can't be read"),
        (vec![0x7f, 0xff, 0xff, 0xff, 0], "can't be read"),
    ] {
        let mut stream = world.open(1024, true);
        stream.write_all(&PREAMBLE).await.unwrap();
        stream.write_all(&sent).await.unwrap();
        stream.read_exact(&mut [0; 8]).await.unwrap();
        let mut framed = Framed::new(stream, FrameCodec::<HandshakeReply, Handshake>::new(1 << 20));
        let rejected = framed.next().await.unwrap().unwrap().unwrap().rejected;
        assert!(rejected.contains(says), "{rejected}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_completes_its_handshake_is_cut_off() {
    let world = echo();
    for sent in [&b""[..], &PREAMBLE[..3], &PREAMBLE] {
        let mut stream = world.open(1024, true);
        stream.write_all(sent).await.unwrap();
        let mut rest = Vec::new();
        timeout(MAX_WAIT, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    }
    assert!(world.connect(1).await.is_ok());
}

#[tokio::test]
async fn a_newer_connection_of_a_caller_ends_the_earlier_one_and_an_older_one_is_rejected() {
    let world = echo();
    let mut second = world.connect(2).await.unwrap();
    let error = world.connect(1).await.err().unwrap();
    assert!(error.to_string().contains("a newer connection"), "{error}");
    let mut third = world.connect(3).await.unwrap();
    assert!(answers(&mut second).await.is_err());
    third.send(frame(vec![command(1, 1)])).unwrap();
    assert_eq!(ids(&mut third, 1).await, [1]);
    // The number is remembered after the end.
    drop(third);
    timeout(MAX_WAIT, world.callers.wait_disconnected::<Calls>("caller", 0)).await.unwrap();
    assert!(world.connect(3).await.is_err());
    world.callers.close::<Calls>();
    let mut closed = world.connect(4).await.unwrap();
    assert!(answers(&mut closed).await.is_err());
}

#[tokio::test]
async fn an_oversized_frame_ends_the_connection() {
    let world = echo();
    let mut stream = world.open(64 << 10, true);
    let handshake = Handshake {
        protocol: Calls::NAME.to_owned(),
        wire_version: WIRE_VERSION,
        caller: "caller".to_owned(),
        connection: 1,
        token: world.identity("caller", 1).token().unwrap().expose().to_owned(),
        ..Handshake::default()
    };
    stream.write_all(&PREAMBLE).await.unwrap();
    stream.write_u32(u32::try_from(handshake.encoded_len()).unwrap()).await.unwrap();
    stream.write_all(&handshake.encode_to_vec()).await.unwrap();
    stream.write_u32(u32::try_from(Calls::MAX_FRAME_BYTES + 1).unwrap()).await.unwrap();
    timeout(MAX_WAIT, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    let mut connection = world.connect(2).await.unwrap();
    assert!(connection.send(frame(vec![command(1, Calls::MAX_FRAME_BYTES)])).is_err());
}

#[tokio::test]
async fn large_replies_arrive_and_a_too_large_one_harms_nobody() {
    let sizes = [10, 1 << 20, (8 << 20) + 1, 8 << 20, 10];
    let world = World::start(move |call| {
        let size = sizes[call.id as usize];
        async move { reply(size) }.boxed()
    });
    let mut connection = world.connect(1).await.unwrap();
    connection.send(frame((0..5).map(|id| command(id, 1)).collect())).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 5 {
        for answer in answers(&mut connection).await.unwrap() {
            let bytes = match answer.outcome {
                Some(Outcome::Reply(bytes)) => Some(bytes.len()),
                _ => None,
            };
            seen.push((answer.id, bytes));
        }
    }
    seen.sort_unstable();
    let expected = [Some(sizes[0]), Some(sizes[1]), None, Some(sizes[3]), Some(sizes[4])];
    assert_eq!(seen, expected.into_iter().enumerate().map(|(id, size)| (id as u64, size)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_reads_nothing_is_not_read_from_and_is_cut_off() {
    let started = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&started);
    let world = World::start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { reply(100 << 10) }.boxed()
    });
    let (mut connection, ()) = {
        let stream = Box::new(world.open(256 << 10, true));
        identify::<Calls>(stream, &world.identity("caller", 1), &()).await.unwrap()
    };
    let mut sent = 0;
    let error = loop {
        if connection.is_flushed() {
            sent += 1;
            connection.send(frame(vec![command(sent, 10 << 10)])).unwrap();
        }
        // Writes, and reads nothing.
        if let Err(error) =
            timeout(Duration::from_millis(100), connection.next(false)).await.unwrap_or(Ok(Event::Flushed))
        {
            break error;
        }
    };
    println!("{sent} frames: {error}");
    // What the node took in is what its replies have room for, and one full frame.
    assert!(started.load(Ordering::SeqCst) < 64, "{started:?}");
}

/// A node at which calls of account 1 never end, and others at once.
fn stuck_for_one() -> (World, Arc<AtomicU64>) {
    let started = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&started);
    let world = World::start(move |call| {
        counted.fetch_add(1, Ordering::SeqCst);
        if call.account == 1 { std::future::pending().boxed() } else { async { reply(3) }.boxed() }
    });
    (world, started)
}

#[tokio::test]
async fn calls_of_an_account_are_bounded_and_the_node_serves_others() {
    let (world, started) = stuck_for_one();
    let mut connection = world.connect(1).await.unwrap();
    // One call too many that is not urgent, and then one that is.
    let (usual, max) = (MAX_CALLS_OF_ACCOUNT.without_reserve().calls as u64, MAX_CALLS_OF_ACCOUNT.calls as u64);
    let call = |id| Call { is_urgent: id > usual + 1, account: 1, ..command(id, 1) };
    for calls in (1..=max + 2).map(call).collect::<Vec<_>>().chunks(256) {
        connection.send(frame(calls.to_vec())).unwrap();
        connection.flush().await.unwrap();
    }
    connection.send(frame(vec![Call { account: 2, ..command(max + 3, 1) }])).unwrap();
    let mut answered = Vec::new();
    while answered.len() < 3 {
        answered.extend(answers(&mut connection).await.unwrap());
    }
    answered.sort_unstable_by_key(|answer| answer.id);
    assert!(answered.iter().map(|answer| answer.id).eq([usual + 1, max + 2, max + 3]));
    for (refused, max) in answered.iter().zip([usual, max]) {
        let limited = format!("{} is limited to {max};", CALL_LIMITS[0].what);
        let Some(Outcome::NotProposed(reason)) = &refused.outcome else { panic!("{refused:?}") };
        assert!(reason.starts_with(&limited), "{reason}");
    }
    assert_eq!(answered[2].outcome, Some(reply(3)));
    assert_eq!(started.load(Ordering::SeqCst), max + 1);
}

#[tokio::test]
async fn large_calls_of_an_account_are_bounded_by_their_bytes() {
    let (world, started) = stuck_for_one();
    let mut connection = world.connect(1).await.unwrap();
    for id in 1..=3 {
        connection.send(frame(vec![Call { account: 1, ..command(id, 6 << 20) }])).unwrap();
        connection.flush().await.unwrap();
    }
    let answered = answers(&mut connection).await.unwrap();
    assert!(matches!(answered[..], [Answer { id: 3, outcome: Some(Outcome::NotProposed(_)), .. }]), "{answered:?}");
    assert_eq!(started.load(Ordering::SeqCst), 2, "12 MiB");
}

#[tokio::test]
async fn large_replies_of_an_account_delay_no_small_one_of_another() {
    let world = World::start(|call| {
        let bytes = if call.account == 1 { 64 << 10 } else { 3 };
        async move { reply(bytes) }.boxed()
    });
    let mut connection = world.connect(1).await.unwrap();
    connection.send(frame((1..=1_024).map(|id| Call { account: 1, ..command(id, 1) }).collect())).unwrap();
    connection.flush().await.unwrap();
    connection.send(frame(vec![Call { account: 2, ..command(2_000, 1) }])).unwrap();
    connection.flush().await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 1_025 {
        seen.extend(answers(&mut connection).await.unwrap().iter().map(|answer| answer.id));
    }
    let before = seen.iter().position(|id| *id == 2_000).unwrap();
    assert!(before <= 64, "{before} replies of 64 KiB came first");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_lives_and_a_silent_peer_is_noticed() {
    let world = echo();
    let mut connection = world.connect(1).await.unwrap();
    assert!(timeout(Duration::from_secs(30), answers(&mut connection)).await.is_err(), "nothing is said");
    connection.send(frame(vec![command(1, 1)])).unwrap();
    assert_eq!(ids(&mut connection, 1).await, [1]);

    // A machine that vanished: what is written to it is taken, and nothing comes back.
    let identity = world.identity("caller", 2);
    let (ours, mut theirs) = duplex(1 << 20);
    theirs.write_all(&PREAMBLE).await.unwrap();
    let accepted = HandshakeReply { release: "1".to_owned(), ..HandshakeReply::default() };
    theirs.write_u32(u32::try_from(accepted.encoded_len()).unwrap()).await.unwrap();
    theirs.write_all(&accepted.encode_to_vec()).await.unwrap();
    let (mut connection, ()) = identify::<Calls>(Box::new(ours), &identity, &()).await.unwrap();
    let began = tokio::time::Instant::now();
    let error = answers(&mut connection).await.unwrap_err();
    assert!(error.to_string().contains("it sent nothing"), "{error}");
    assert!((1..=3).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_deferred_call_can_be_cancelled_and_ends_with_its_connection() {
    let world = echo();
    let mut connection = world.connect(1).await.unwrap();
    connection.send(frame(vec![Call { max_wait_ms: 60_000, ..command(5, 1) }])).unwrap();
    let first = answers(&mut connection).await.unwrap();
    assert!(matches!(first[..], [Answer { id: 5, outcome: Some(Outcome::Deferred(_)), .. }]), "{first:?}");
    connection.send(CallFrame { cancelled: vec![5], ..CallFrame::default() }).unwrap();
    let last = answers(&mut connection).await.unwrap();
    assert!(matches!(last[..], [Answer { id: 5, outcome: Some(Outcome::NotProposed(_)), .. }]), "{last:?}");
}

#[tokio::test]
async fn however_many_calls_are_cancelled_together_all_of_them_end() {
    let world = echo();
    let mut connection = world.connect(1).await.unwrap();
    let all: Vec<u64> = (1..=200).collect();
    let wait = |id: &u64| Call { max_wait_ms: 60_000, ..command(*id, 1) };
    connection.send(frame(all.iter().map(wait).collect())).unwrap();
    assert_eq!(ids(&mut connection, 200).await, all, "they are deferred");
    // The first are not there: no reply to them makes the node look again.
    connection.send(CallFrame { cancelled: (1_000..2_000).chain(1..=200).collect(), ..CallFrame::default() }).unwrap();
    assert_eq!(ids(&mut connection, 200).await, all);
}

#[tokio::test]
async fn a_command_ends_with_its_connection_however_large_it_is() {
    let running = Arc::new(());
    let counted = Arc::clone(&running);
    let world = World::start(move |_| {
        let counted = Arc::clone(&counted);
        std::future::pending::<Outcome>().inspect(move |_| drop(counted)).boxed()
    });
    let mut connection = world.connect(1).await.unwrap();
    connection.send(frame(vec![command(1, 1), command(2, 100 << 10)])).unwrap();
    connection.flush().await.unwrap();
    let wait_for = async |count: usize| {
        while Arc::strong_count(&running) != count {
            tokio::task::yield_now().await;
        }
    };
    // Besides this test and the handler.
    timeout(MAX_WAIT, wait_for(4)).await.unwrap();
    drop(connection);
    timeout(MAX_WAIT, wait_for(2)).await.unwrap();
}

#[tokio::test]
async fn a_panic_in_one_call_leaves_the_others() {
    let world = World::start(|call| match call.id {
        // Without the backtrace, which takes a loaded machine longer than a silent connection lives.
        1 => async { resume_unwind(Box::new("a bug")) }.boxed(),
        _ => async { reply(1) }.boxed(),
    });
    let mut connection = world.connect(1).await.unwrap();
    let query = Call { body: Some(call::Body::Query(Bytes::new())), ..command(1, 1) };
    connection.send(frame(vec![command(1, 1), query, command(2, 1)])).unwrap();
    assert_eq!(ids(&mut connection, 3).await, [1, 1, 2]);
}
