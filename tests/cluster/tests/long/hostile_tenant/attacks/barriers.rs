//! Barriers: many who come and go, and many generations.

use holdfast_proto::v1::barrier_answer::Outcome;
use holdfast_proto::v1::client_message::{Arrive, Leave, Message};
use serde_json::{Value, json};

use super::AttackResult;
use crate::hostile_tenant::attacker::Attacker;
use crate::hostile_tenant::session::{Session, flat_path};

/// Of one barrier.
const MAX_PARTIES: usize = 1_000;

async fn configure(enemy: &Attacker, name: &str, parties: usize, more: Value) -> AttackResult {
    let mut body = json!({"name": name, "parties": parties});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    enemy.call_thing("barriers", "configure", body).await.map(drop)
}

/// Arrivals of so many threads of a session, with requests whose names begin so.
fn arrivals(barrier: &str, round: &str, count: usize) -> Vec<(String, Message)> {
    let one = |number: usize| {
        let (request_id, holder) = (format!("{round}-{number:04}"), Some(format!("t{number}")));
        let arrive = Arrive { request_id: request_id.clone(), path: flat_path(barrier), holder, ..Arrive::default() };
        (request_id, Message::Arrive(arrive))
    };
    (0..count).map(one).collect()
}

/// All of these were told the same of their generation.
fn expect_all(told: &[i32], outcome: Outcome) -> AttackResult {
    let others = told.iter().filter(|told| **told != outcome as i32).count();
    if others == 0 { Ok(()) } else { Err(format!("{others} of {} were not told {outcome:?}", told.len())) }
}

pub(crate) async fn trips(enemy: Attacker) -> AttackResult {
    let parties = enemy.scaled(MAX_PARTIES, 200);
    configure(&enemy, "b", parties, json!({})).await?;
    let (mut first, mut second) = (enemy.open_session().await?, enemy.open_session().await?);
    for round in 0..enemy.scaled(40, 4) {
        let names = [format!("a{round}"), format!("b{round}")];
        first.request_all(arrivals("b", &names[0], parties / 2)).await?;
        let rest = second.request_all(arrivals("b", &names[1], parties / 2));
        enemy.timed("the arrivals of the others", rest).await?;
        let told = enemy.timed("the telling of all", first.wait_met(parties / 2)).await?;
        expect_all(&told, Outcome::Tripped)?;
        expect_all(&second.wait_met(parties / 2).await?, Outcome::Tripped)?;
    }
    first.close().await?;
    second.close().await
}

pub(crate) async fn leaves(enemy: Attacker) -> AttackResult {
    let (barriers, comers) = (enemy.scaled(10, 3), enemy.scaled(MAX_PARTIES - 1, 200));
    let mut sessions = Vec::new();
    for number in 0..barriers {
        configure(&enemy, &format!("b{number}"), comers + 1, json!({"on_loss": "WITHDRAW"})).await?;
        sessions.push(enemy.open_session().await?);
    }
    for round in 0..enemy.scaled(4, 2) {
        for (number, session) in sessions.iter_mut().enumerate() {
            let arrivals = arrivals(&format!("b{number}"), &round.to_string(), comers);
            let leave = |(request_id, _): &(String, Message)| {
                (request_id.clone(), Message::Leave(Leave { request_id: request_id.clone() }))
            };
            let leaves: Vec<(String, Message)> = arrivals.iter().map(leave).collect();
            session.request_all(arrivals).await?;
            session.request_all(leaves).await?;
            expect_all(&session.wait_met(comers).await?, Outcome::Withdrawn)?;
        }
    }
    for (number, session) in sessions.into_iter().enumerate() {
        let shown = enemy.call_thing("barriers", "get", json!({"name": format!("b{number}")})).await?;
        if shown["barrier"]["arrived"] != 0 {
            return Err(format!("somebody is left over: {}", shown["barrier"]));
        }
        session.close().await?;
    }
    Ok(())
}

/// Ends a session whose connection breaks off.
async fn end(enemy: &Attacker, session: Session) -> AttackResult {
    let (grpc, id) = (enemy.connect().await?, session.id.clone());
    drop(session);
    let ended = enemy.timed("the end", grpc.delete_session(&enemy.namespace, &id)).await;
    ended.map(drop).map_err(|status| status.to_string())
}

pub(crate) async fn session_ends(enemy: Attacker) -> AttackResult {
    let parties = enemy.scaled(MAX_PARTIES, 200);
    configure(&enemy, "d", parties, json!({"double": true})).await?;
    configure(&enemy, "b", parties, json!({})).await?;
    for round in 0..enemy.scaled(10, 2) {
        let (name, next) = (round.to_string(), format!("next-{round}"));
        let (mut inside, mut outside) = (enemy.open_session().await?, enemy.open_session().await?);
        inside.request_all(arrivals("d", &name, parties)).await?;
        expect_all(&inside.wait_met(parties).await?, Outcome::Tripped)?;
        inside.request_all(arrivals("b", &format!("b{name}"), parties / 2)).await?;
        outside.request_all(arrivals("b", &format!("b{next}"), parties / 2 - 1)).await?;
        // They go in once nobody is inside any more, and those at the other barrier have come in vain.
        outside.request_all(arrivals("d", &next, parties)).await?;
        end(&enemy, inside).await?;
        let told = enemy.timed("the telling of all", outside.wait_met(parties + parties / 2 - 1)).await?;
        let tripped = told.iter().filter(|told| **told == Outcome::Tripped as i32).count();
        let broken = told.iter().filter(|told| **told == Outcome::Broken as i32).count();
        if (tripped, broken) != (parties, parties / 2 - 1) {
            return Err(format!("{tripped} met, and {broken} came in vain"));
        }
        outside.close().await?;
    }
    Ok(())
}
