//! Prints the messages of a scenario.

use anyhow::Result;
use holdfast_operator::output::{self, Format};
use serde_json::{Value, json};

/// Prints a message to or from the service.
pub(super) fn print_message(format: Format, who: &str, what: &Value) -> Result<()> {
    match format {
        Format::Text if what.is_null() => output::print(who),
        Format::Text => output::print(format_args!("{who} {}", brief(what))),
        Format::Json => output::print(json!({"what": who.trim(), "said": what})),
    }
}

/// Returns the relevant fields of a response: of a lock its state, of a holder or waiter its name.
fn brief(answer: &Value) -> Value {
    let Value::Object(members) = answer else { return answer.clone() };
    let mut short = members.clone();
    if short.contains_key("success") || short.contains_key("released") {
        short.remove("lock");
        short.remove("locks");
    }
    if let Some(lock) = short.get_mut("lock") {
        *lock = brief_lock(lock);
    }
    if let Some(locks) = short.get_mut("locks").and_then(Value::as_array_mut) {
        locks.iter_mut().for_each(|lock| *lock = brief_lock(lock));
    }
    if let Some(reason) = short.get_mut("reason") {
        for list in ["blockers", "cycle"] {
            for somebody in reason.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                *somebody = pick(somebody, &["path", "process_id", "mode", "waiting"]);
            }
        }
    }
    Value::Object(short)
}

fn brief_lock(lock: &Value) -> Value {
    let mut short = pick(lock, &["path", "state", "waiting"]);
    let mut holders: Vec<&Value> = lock["read_lock_holders"].as_array().into_iter().flatten().collect();
    holders.extend(Some(&lock["write_lock_holder"]).filter(|writer| !writer.is_null()));
    short["holders"] = holders.iter().map(|holder| holder["process_id"].clone()).collect();
    short
}

/// Returns the existing members with these names.
fn pick(whole: &Value, names: &[&str]) -> Value {
    let kept = names.iter().filter_map(|name| Some(((*name).to_owned(), whole.get(name)?.clone())));
    Value::Object(kept.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_answer_is_shown_what_matters() {
        let answer = json!({"success": false, "lock": {"path": ["a"]}, "reason": {"code": "HELD", "blockers": [
            {"path": ["a"], "process_id": "p", "mode": "READ", "waiting": false, "phase": "HELD", "metadata": {}},
        ]}});
        let blocker = json!({"path": ["a"], "process_id": "p", "mode": "READ", "waiting": false});
        assert_eq!(brief(&answer), json!({"success": false, "reason": {"code": "HELD", "blockers": [blocker]}}));
        let writer = json!({"process_id": "w", "mode": "WRITE", "fencing_token": 1});
        let lock = json!({"path": ["a"], "state": "WRITE_LOCKED", "waiting": 2, "write_lock_holder": writer,
            "read_lock_holders": [], "revision": 1});
        let shown = json!({"path": ["a"], "state": "WRITE_LOCKED", "waiting": 2, "holders": ["w"]});
        assert_eq!(brief(&json!({"lock": lock})), json!({"lock": shown}));
    }
}
