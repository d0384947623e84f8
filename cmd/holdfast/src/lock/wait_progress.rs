//! Progress reports of a wait.

use holdfast_client::{Blocker, Path, WaitStatus};

use crate::output::Format;
use crate::render;

/// Reports the blockers, since when they hold the lock, and the queue position, whenever these change.
pub(super) struct WaitProgress {
    format: Format,
    path: Path,
    said: Option<String>,
}

impl WaitProgress {
    pub(super) fn new(format: Format, path: Path) -> Self {
        Self { format, path, said: None }
    }

    pub(super) fn observe(&mut self, standing: &WaitStatus) {
        let line = line(&self.path, standing);
        if self.said.as_ref() != Some(&line) {
            self.format.info(&line);
            self.said = Some(line);
        }
    }
}

fn line(path: &Path, standing: &WaitStatus) -> String {
    let mut line = format!("waiting for {path}");
    let holds: Vec<&Blocker> = standing.blockers.iter().filter(|blocker| !blocker.waiting).collect();
    if let Some((first, others)) = holds.split_first() {
        line += &format!(": {} holds ", first.holder.name());
        line += &if first.path == *path { "it".to_owned() } else { first.path.to_string() };
        if let Some(since) = first.holder.locked_at {
            line += &format!(" since {}", render::instant(since));
        }
        if !others.is_empty() {
            line += &format!(", with {}", render::others(others.len() as u64));
        }
    }
    if let Some((first, others)) = standing.holders.split_first() {
        line += &format!(": {} has {}", first.name(), first.weight);
        if let Some(since) = first.locked_at {
            line += &format!(" since {}", render::instant(since));
        }
        if !others.is_empty() {
            line += &format!(", with {}", render::others(others.len() as u64));
        }
    }
    match standing.queue_position {
        Some(0) => line + "; next in the queue",
        Some(before) => line + &format!("; {before} ahead in the queue"),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_client::{Holder, Mode, PermitHolder};
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_line_says_who_since_when_and_where() {
        let holder = Holder {
            process_id: "ann@build:7".to_owned(),
            session_id: None,
            holder: Some("deploy.sh".to_owned()),
            mode: Mode::Write,
            fencing_token: 3,
            locked_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(3_600)),
            remaining: None,
            in_transition: false,
            metadata: [].into(),
        };
        let blocker = Blocker { path: "deploy".into(), waiting: false, holder };
        let standing = WaitStatus { queue_position: Some(2), blockers: vec![blocker], holders: Vec::new() };
        assert_eq!(
            line(&"deploy".into(), &standing),
            "waiting for deploy: ann@build:7 (deploy.sh) holds it since 1970-01-01T01:00:00Z; 2 ahead in the queue"
        );
        assert_eq!(line(&"deploy".into(), &WaitStatus::default()), "waiting for deploy");
        let holder = PermitHolder {
            process_id: "ann@build:7".to_owned(),
            session_id: None,
            holder: None,
            weight: 2,
            fencing_token: 3,
            locked_at: None,
        };
        let standing = WaitStatus { queue_position: Some(0), blockers: Vec::new(), holders: vec![holder] };
        let told = "waiting for licences: ann@build:7 has 2; next in the queue";
        assert_eq!(line(&"licences".into(), &standing), told);
    }
}
