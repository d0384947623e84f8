//! Calls to nodes over HTTP/2: status and operations, which are rare.

use std::sync::Arc;
use std::time::Duration;

use holdfast_rpc::{ConnectError, Dialer, Identity};
use hyper_util::rt::TokioIo;
use tonic::Request;
use tonic::codegen::http::Uri;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Interval of keep-alives on an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a node may take to answer a keep-alive before the connection is closed.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// This process, as a caller of nodes.
pub(super) struct HttpCaller {
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) identity: Arc<Identity>,
}

impl HttpCaller {
    /// Connects to `address` (`host:port`). The caller applies the timeout.
    pub(super) async fn connect(&self, address: &str) -> Result<Channel, ConnectError> {
        http_channel(&self.dialer, address).await
    }

    /// Adds the credentials to a message.
    pub(super) fn request<T>(&self, message: T) -> Result<Request<T>, ConnectError> {
        let mut request = Request::new(message);
        let value = MetadataValue::try_from(format!("Bearer {}", self.identity.token()?.expose()));
        let mut value = value.map_err(|error| ConnectError::new(error.to_string()))?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

/// Opens an HTTP/2 channel to `address` (`host:port`).
///
/// # Errors
/// When the node can't be reached.
pub async fn http_channel(dialer: &Arc<dyn Dialer>, address: &str) -> Result<Channel, ConnectError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| ConnectError::new(error.to_string()))?;
    let endpoint = endpoint
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let (dialer, address) = (Arc::clone(dialer), address.to_owned());
    let connect = service_fn(move |_: Uri| {
        let connecting = dialer.connect(&address);
        async move { connecting.await.map(TokioIo::new) }
    });
    endpoint.connect_with_connector(connect).await.map_err(|error| connect_error(&error))
}

/// Returns the dialer's error, or else the error with its causes: the transport puts the useful part last. Text that
/// repeats its cause appears once.
fn connect_error(error: &(dyn std::error::Error + 'static)) -> ConnectError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<ConnectError>() {
            return error.clone();
        }
        let deeper = error.to_string();
        if !text.ends_with(&deeper) {
            text = format!("{text}: {deeper}");
        }
        cause = error.source();
    }
    ConnectError::new(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        cause: Option<Box<Layer>>,
    }

    #[test]
    fn what_a_cause_repeats_is_said_once() {
        let layers = [
            "BadSignature",
            "invalid certificate: BadSignature",
            "invalid certificate: BadSignature",
            "transport error",
        ];
        let wrap = |cause: Option<Box<Layer>>, text| Some(Box::new(Layer { text, cause }));
        let error = layers.into_iter().fold(None, wrap).unwrap();
        assert_eq!(connect_error(&*error).to_string(), "transport error: invalid certificate: BadSignature");
    }
}
