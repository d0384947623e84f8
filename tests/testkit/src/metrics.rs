//! The `/metrics` of a process, in the exposition format of Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::rest_client::RestClient;

const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The metrics of one process at one time.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The kind of each metric, by name.
    pub kinds: BTreeMap<String, String>,
    /// The names of those with a description.
    pub described: BTreeSet<String>,
    /// All values.
    pub samples: Vec<Sample>,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name; that of a histogram with the suffix `_bucket`, `_sum` or `_count`.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl Metrics {
    /// Reads the metrics of a process that allows it to processes of this machine.
    ///
    /// # Errors
    /// If it does not answer within 5 s, or refuses.
    ///
    /// # Panics
    /// If the answer is not in the format.
    pub async fn read(address: SocketAddr) -> Result<Self, String> {
        let client = RestClient::new(address, "");
        let answer = tokio::time::timeout(READ_TIMEOUT, client.try_send("GET /metrics", &[], Bytes::new())).await;
        let answer = answer.map_err(|_| format!("{address}: no metrics within {READ_TIMEOUT:?}"))?;
        let answer = answer.map_err(|error| format!("{address}: {error}"))?;
        if answer.status == 200 { Ok(Self::parse(&answer.text)) } else { Err(format!("{address}: {}", answer.text)) }
    }

    /// Parses the exposition format.
    ///
    /// # Panics
    /// At a line that is not in the format.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                metrics.kinds.insert(name.to_owned(), kind.to_owned());
            } else if let Some((name, _)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                metrics.described.insert(name.to_owned());
            } else if !line.starts_with('#') {
                metrics.samples.push(parse_sample(line).unwrap_or_else(|| panic!("not a sample: {line}")));
            }
        }
        metrics
    }

    /// Returns the sum of a metric over its labels; 0 if it does not exist (yet).
    pub fn sum(&self, name: &str) -> f64 {
        self.named(name).map(|sample| sample.value).sum()
    }

    /// Whether there is a value of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.named(name).next().is_some()
    }

    /// The values of that name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }
}

/// `name{label="value",…} 1.5`, where a value escapes quotes by backslashes.
fn parse_sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, mut rest) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels = BTreeMap::new();
    while rest != "}" {
        let (label, quoted) = rest.split_once("=\"")?;
        let mut is_escaped = false;
        let end = quoted.find(|character| {
            let is_end = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            is_end
        })?;
        labels.insert(label.to_owned(), quoted[..end].to_owned());
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_mistaken_for_another() {
        let text = "# TYPE syncs counter\nsyncs{disk=\"a\"} 3\nsyncs{disk=\"b\"} 4\nsyncs_total 9\n";
        let metrics = Metrics::parse(text);
        assert!((metrics.sum("syncs") - 7.0).abs() < f64::EPSILON);
        assert!((metrics.sum("syncs_total") - 9.0).abs() < f64::EPSILON);
        assert!(metrics.sum("other").abs() < f64::EPSILON);
        assert_eq!((metrics.contains("syncs"), metrics.contains("other")), (true, false));
        assert_eq!(metrics.kinds["syncs"], "counter");
    }

    #[test]
    fn values_of_labels_may_contain_anything() {
        let text = "calls{route=\"/v1/{name}, \\\"x\\\"\",code=\"200\"} +Inf\n";
        let metrics = Metrics::parse(text);
        let labels = &metrics.samples[0].labels;
        assert_eq!((labels["route"].as_str(), labels["code"].as_str()), ("/v1/{name}, \\\"x\\\"", "200"));
        assert!(metrics.samples[0].value.is_infinite());
    }
}
