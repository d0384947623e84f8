//! REST client of the service.

mod error;
mod operator;
mod tls_proxy;

use std::time::Duration;

use anyhow::{Context, Result};
use backon::{ExponentialBuilder, Retryable};
use holdfast_auth::{OperatorToken, OperatorVerifier, Secret};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::Value;

pub use error::CallError;
pub use operator::operator_client;
pub(crate) use tls_proxy::plaintext_url;

/// Longer than the deadline of the service, so that its own error arrives.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_RETRIES: usize = 5;
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(3);

/// The address of the service: `http://host:port` or `https://host:port`, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(String);

/// The reason why a text is no address of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    /// It is no URL, or has a query or fragment.
    #[error("write it like http://127.0.0.1:8080 ({0})")]
    Malformed(String),
    /// Its scheme is neither http nor https.
    #[error("only http:// and https:// are supported, not {0}://")]
    OtherScheme(String),
}

impl std::str::FromStr for BaseUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let url = Url::parse(text).map_err(|error| InvalidUrl::Malformed(error.to_string()))?;
        match url.scheme() {
            "http" | "https" if url.query().is_none() && url.fragment().is_none() => {
                Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
            }
            "http" | "https" => Err(InvalidUrl::Malformed("without ? and #".to_owned())),
            // Without `://`, the apparent scheme is a host, and the scheme is missing.
            scheme if !text.contains("://") => Err(InvalidUrl::Malformed(format!("{scheme} is no scheme"))),
            scheme => Err(InvalidUrl::OtherScheme(scheme.to_owned())),
        }
    }
}

impl std::fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Calls the service with one credential. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: BaseUrl,
    bearer: Secret,
}

impl Client {
    /// Creates a client for that address and credential.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub fn new(url: BaseUrl, bearer: Secret) -> Result<Self> {
        // A proxy from the environment cannot reach the loopback addresses of this machine.
        let http = reqwest::Client::builder().timeout(CALL_TIMEOUT).no_proxy().build();
        Ok(Self { http: http.context("no HTTP client can be made")?, url, bearer })
    }

    /// Returns a client with another credential.
    pub fn with_bearer(&self, bearer: Secret) -> Self {
        Self { bearer, ..self.clone() }
    }

    /// Returns whether its credential is this operator token. Nothing is sent.
    pub fn has_operator_token(&self, token: &OperatorToken) -> bool {
        OperatorToken::parse(self.bearer.expose()).is_ok_and(|own| OperatorVerifier::new(token).accepts(&own))
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn get(&self, path: &str) -> Result<Value, CallError> {
        self.call(|| self.request(Method::GET, path)).await
    }

    /// Sends a POST request that is safe to repeat.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.call(|| self.request(Method::POST, path).json(body)).await
    }

    /// Sends a creation with an idempotency key: the service performs it once, and repeats its response.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn create(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.create_once(path, &uuid::Uuid::new_v4().to_string(), body).await
    }

    /// Sends a creation with that idempotency key.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn create_once(&self, path: &str, idempotency_key: &str, body: &Value) -> Result<Value, CallError> {
        let request = || self.request(Method::POST, path).header("Idempotency-Key", idempotency_key).json(body);
        self.call(request).await
    }

    /// Sends a PATCH request that is safe to repeat.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.call(|| self.request(Method::PATCH, path).json(body)).await
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn delete(&self, path: &str) -> Result<(), CallError> {
        self.call(|| self.request(Method::DELETE, path)).await.map(|_| ())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(self.bearer.expose())
    }

    /// Sends an idempotent request, and retries while the error allows it.
    async fn call(&self, request: impl Fn() -> RequestBuilder) -> Result<Value, CallError> {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(MIN_RETRY_DELAY)
            .with_max_delay(MAX_RETRY_DELAY)
            .with_max_times(MAX_RETRIES)
            .with_jitter();
        (async || self.send(request()).await).retry(pauses).when(CallError::is_retryable).await
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value, CallError> {
        let unreachable = |reason| CallError::Unreachable { url: self.url.clone(), reason };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        if status.is_success() && text.is_empty() {
            return Ok(Value::Null);
        }
        let stranger = || CallError::NotHoldfast { url: self.url.clone(), status: status.as_u16() };
        let body: Value = serde_json::from_str(&text).map_err(|_| stranger())?;
        if status.is_success() {
            return Ok(body);
        }
        let member = |name: &str| body[name].as_str().map(str::to_owned);
        let (Some(code), Some(detail)) = (member("code"), member("detail")) else { return Err(stranger()) };
        Err(CallError::Problem { code, detail, body })
    }
}

/// Returns a text that the response must have.
///
/// # Errors
/// If it has none.
pub fn text_field<'a>(answer: &'a Value, field: &str) -> Result<&'a str> {
    answer[field]
        .as_str()
        .with_context(|| format!("the service's answer has no text {field:?}; is it of this version?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_makes_no_difference() {
        for text in ["http://127.0.0.1:8080", "http://127.0.0.1:8080/"] {
            assert_eq!(text.parse::<BaseUrl>().unwrap().to_string(), "http://127.0.0.1:8080");
        }
    }

    #[test]
    fn a_client_knows_its_operator_token() {
        let [own, other] = [(); 2].map(|()| OperatorToken::generate().unwrap());
        let client = Client::new("http://127.0.0.1:8080".parse().unwrap(), own.reveal().clone()).unwrap();
        assert!(client.has_operator_token(&own) && !client.has_operator_token(&other));
        assert!(!client.with_bearer(Secret::new("hf_key")).has_operator_token(&own));
    }

    #[test]
    fn addresses_that_cannot_be_called_are_refused_with_the_form_expected() {
        let refusal = |text: &str| text.parse::<BaseUrl>().unwrap_err().to_string();
        for bad in ["", "127.0.0.1:8080", "localhost:8080", "http://", "http://127.0.0.1:8080/?a=b"] {
            assert!(refusal(bad).contains("like http://127.0.0.1:8080"), "{bad}: {}", refusal(bad));
        }
        assert!(refusal("ftp://locks.example.com").contains("https://"));
        assert!("https://locks.example.com".parse::<BaseUrl>().is_ok());
    }
}
