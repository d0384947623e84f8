//! Traces reach a collector. A process of its own: logging is set up once in each.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use holdfast_telemetry::{
    BuildInfo, LogFormat, LoggingError, LoggingOptions, continue_trace, flush_traces, init_logging,
    is_exporting_traces, trace_parent,
};

const BUILD: BuildInfo = BuildInfo { program: "holdfast-test", version: "1.2.3" };
/// The trace and the span that a caller names.
const CALLER_TRACE_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn logging(otlp_endpoint: Option<&str>) -> LoggingOptions<'_> {
    LoggingOptions { format: LogFormat::Text, filter: "info", otlp_endpoint, build: BUILD }
}

/// Takes one request, whole, and says that all is well.
fn receive_request(mut stream: TcpStream, taken: &Sender<Vec<u8>>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4_096];
    while !is_complete(&request) {
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    let _ = taken.send(request);
}

fn is_complete(request: &[u8]) -> bool {
    let Some(head) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    length.is_some_and(|length| request.len() >= head + 4 + length)
}

fn contains(request: &[u8], text: &[u8]) -> bool {
    request.windows(text.len()).any(|window| window == text)
}

#[test]
fn spans_are_sent_to_the_collector_in_the_trace_of_their_caller() {
    assert!(!is_exporting_traces() && trace_parent().is_none(), "off by default");
    let refused = init_logging(logging(Some("https://127.0.0.1:4318"))).unwrap_err();
    assert!(matches!(&refused, LoggingError::Otlp { problem, .. } if problem.contains("http://")), "{refused}");

    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", collector.local_addr().unwrap());
    let (taken, requests) = channel();
    std::thread::spawn(move || {
        for stream in collector.incoming() {
            receive_request(stream.unwrap(), &taken);
        }
    });
    init_logging(logging(Some(&endpoint))).unwrap();
    assert!(is_exporting_traces());
    let span = tracing::info_span!("call", request_id = "the-request");
    continue_trace(&span, CALLER_TRACE_PARENT);
    let passed_on = span.in_scope(trace_parent).expect("there is a span to continue");
    assert!(passed_on.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{passed_on}");
    assert_ne!(passed_on, CALLER_TRACE_PARENT, "the next process continues this span and not the caller's");
    drop(span);
    flush_traces();
    let request = requests.recv_timeout(Duration::from_secs(20)).expect("the collector is called");
    assert!(request.starts_with(b"POST /v1/traces "), "{}", String::from_utf8_lossy(&request));
    for text in ["holdfast-test", "call", "the-request"] {
        assert!(contains(&request, text.as_bytes()), "{text} is missing");
    }
    let trace: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&CALLER_TRACE_PARENT[3 + 2 * at..5 + 2 * at], 16).unwrap()).collect();
    assert!(contains(&request, &trace), "the trace is the caller's");
}
