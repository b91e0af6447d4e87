//! ELSE in RL.ALL: the first clause of a group that would be allowed takes.

use support::*;

#[test]
fn else_stands_between_two_clauses() {
    let (_server, mut conn) = Server::with_held_clock();
    let error = "ERR syntax error: ELSE must be between two clauses";
    for call in [
        "RL.ALL 1 a ELSE WINDOW 1 1",
        "RL.ALL 1 a WINDOW 1 1 ELSE",
        "RL.ALL 1 a WINDOW 1 1 ELSE MS",
        "RL.ALL 2 a b WINDOW 1 1 ELSE ELSE WINDOW 1 1",
        "RL.ALL 2 a b WINDOW 1 1 else Else WINDOW 1 1",
        "RL.ALL 2 a b WINDOW 1 1 ELSE 5 WINDOW 1 1",
    ] {
        assert_eq!(conn.err(call), error, "{call}");
    }
    for call in [
        // A key, an id and a policy's place may be called so.
        "RL.ALL 1 ELSE WINDOW 1 1",
        "RL.ALL 2 ELSE else ACQUIRE 1 1 1 ID ELSE else WINDOW 5 1 MS",
        "RL.ALL 1 a ACQUIRE 1 1 1 ID ELSE",
    ] {
        assert_eq!(all_reply(&conn.cmd(call)).numbers[0], 0, "{call}");
    }
    // ELSE is no clause.
    for call in ["RL.ALL 2 a b WINDOW 1 1", "RL.ALL 1 a WINDOW 1 1 ELSE WINDOW 1 1"] {
        assert_eq!(
            conn.err(call),
            "ERR the number of clauses must equal the number of keys",
            "{call}"
        );
    }
}

#[test]
fn a_shadow_is_the_choice_where_none_before_it_is() {
    let policies = "new WINDOW 1 60 SHADOW; old WINDOW 1 60";
    let (_server, mut conn) =
        Server::builder().module_args(["policies", policies]).with_held_clock();
    let call = "RL.ALL 2 {u}:old {u}:new WINDOW @old ELSE WINDOW @new MS";
    // The old limit takes, then the new one takes, then the new one lets pass what it would deny.
    for (choice, events) in [(1, [1, 0]), (2, [1, 1]), (2, [1, 1])] {
        let answer = all_reply(&conn.cmd(call));
        assert_eq!((answer.numbers[0], answer.numbers[5]), (0, choice), "{answer:?}");
        assert_eq!(["{u}:old", "{u}:new"].map(|key| conn.int(["ZCARD", key])), events);
    }
    let counted = flat(&conn.cmd("RL.POLICIES")).join(" ");
    assert_eq!(counted, "new WINDOW 1 60 SHADOW 1 0 1 old WINDOW 1 60 1 0 0");
}

#[test]
fn a_group_that_denies_is_one_denial_of_the_clause_that_speaks() {
    let policies = "a WINDOW 1 60; b WINDOW 1 30; c WINDOW 1 90";
    let (_server, mut conn) =
        Server::builder().module_args(["policies", policies]).with_held_clock();
    let call = "RL.ALL 3 {u}:a {u}:b {u}:c WINDOW @a ELSE WINDOW @b WINDOW @c MS";
    conn.cmd(call);
    // The third denies: the group is allowed, and its clauses are counted nowhere.
    let answer = all_reply(&conn.cmd(call));
    assert_eq!(
        (answer.numbers[..].to_vec(), answer.clauses[1][0]),
        (vec![1, 1, 0, 90_000, 90_000, 3], 0)
    );
    conn.cmd("RL.WINDOW {u}:b @b");
    // Both deny: the shortest wait represents the group, which is the second clause's.
    assert_eq!(all_reply(&conn.cmd(call)).numbers, [1, 1, 0, 90_000, 90_000, 3]);
    let top = flat(&conn.cmd("RL.TOP")).join(" ");
    assert_eq!(top, "{u}:c 0 2 0 {u}:b 0 1 0");
    let counted = flat(&conn.cmd("RL.POLICIES")).join(" ");
    assert_eq!(counted, "a WINDOW 1 60 1 1 0 b WINDOW 1 30 1 1 0 c WINDOW 1 90 1 2 0");
}

#[test]
fn countdenied_counts_in_every_clause_of_a_denied_call() {
    let (_server, mut conn) = Server::with_held_clock();
    let call = "RL.ALL 3 {u}:a {u}:b {u}:c WINDOW 1 60 COUNTDENIED ELSE WINDOW 2 60 COUNTDENIED WINDOW 0 60 MS";
    // The first clause would be allowed, and is full once the denied call was counted; the second still has room.
    let answer = all_reply(&conn.cmd(call));
    assert_eq!(answer.numbers[0], 1);
    assert_eq!(answer.clauses[..2], [[1, 1, 0, 60_000, 60_000], [0, 2, 1, -1, 60_000]]);
    // An allowed call counts only in its choice.
    let call = call.replace("WINDOW 0 60", "WINDOW 9 60");
    assert_eq!(all_reply(&conn.cmd(&call)).numbers[0], 0);
    assert_eq!(
        ["{u}:a", "{u}:b"].map(|key| conn.ints(format!("RL.WINDOW_RO {key} 9 60 0"))[2]),
        [8, 7]
    );
}

#[test]
fn errors_are_met_in_all_clauses_and_too_many_reservations_only_in_a_choice() {
    let (_server, mut conn) =
        Server::builder().module_args(["max-reservations", "1"]).with_held_clock();
    conn.cmd("RL.ACQUIRE {u}:jobs 9 0 1 ID x");
    conn.cmd("SET {u}:text no");
    let full =
        "ERR the key already holds as many reservations as ratelimit.max-reservations allows";
    for (call, error) in [
        ("RL.ALL 2 {u}:free {u}:jobs WINDOW 5 60 ELSE ACQUIRE 9 0", None),
        ("RL.ALL 2 {u}:jobs {u}:free ACQUIRE 9 0 ELSE WINDOW 5 60", Some(full)),
        ("RL.ALL 2 {u}:full {u}:jobs WINDOW 0 60 ELSE ACQUIRE 9 0", Some(full)),
        ("RL.ALL 2 {u}:free {u}:jobs WINDOW 5 60 ELSE ACQUIRE 9 0 1 ID x", Some("DUPLICATE ")),
        ("RL.ALL 2 {u}:free {u}:text WINDOW 5 60 ELSE WINDOW 5 60", Some("WRONGTYPE ")),
        // Errors of arguments come before those of state.
        ("RL.ALL 2 {u}:text {u}:free WINDOW 5 60 ELSE WINDOW 5 1m", Some("ERR period ")),
    ] {
        match error {
            None => assert_eq!(all_reply(&conn.cmd(call)).numbers[0], 0, "{call}"),
            Some(error) => assert!(conn.err(call).starts_with(error), "{call}"),
        }
    }
    assert_eq!(conn.ints("RL.WINDOW_RO {u}:free 9 60 0")[2], 8);
}

#[test]
fn a_clause_with_a_line_is_no_choice() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE {u}:a 1 0 1 ID x");
    let _waits = server.wait_in_line("RL.ACQUIRE {u}:a 1 0 1 ID y BLOCK 0");
    conn.cmd("RL.ALL 2 {u}:a {u}:b ACQUIRE 1 0 ELSE ACQUIRE 1 0 1 ID z");
    assert_eq!(conn.held_ids("{u}:b"), ["z"]);
    assert_eq!(conn.held_ids("{u}:a"), ["x"]);
}

/// One clause of a random call, and the replies of single commands about it.
struct Asked {
    text: String,
    look: String,
    quantity: i64,
    check: bool,
    shadow: bool,
}

/// Every reply follows from the definition and the replies of single commands about each clause, before and after.
#[test]
fn groups_decide_as_their_definition_says() {
    let (server, mut conn) = Server::with_held_clock();
    let mut random = Random::new(24);
    for round in 0..400 {
        let number = 1 + random.below(5) as usize;
        let keys: Vec<String> = (0..number).map(|at| format!("{{u}}:{}:{at}", round / 8)).collect();
        let clauses: Vec<Asked> = keys.iter().map(|key| clause(&mut random, key)).collect();
        let mut groups = vec![0];
        let mut call = format!("RL.ALL {number} {} {}", keys.join(" "), clauses[0].text);
        for clause in &clauses[1..] {
            let joined = random.below(2) == 0;
            groups.push(groups[groups.len() - 1] + usize::from(!joined));
            call += if joined { " ELSE " } else { " " };
            call += &clause.text;
        }
        call += " MS";
        let before: Vec<Vec<i64>> = clauses.iter().map(|one| look(&mut conn, one)).collect();
        let answer = all_reply(&conn.cmd(&call));
        let members = &groups;
        let group = |number: usize| (0..members.len()).filter(move |at| members[*at] == number);
        let last = groups[groups.len() - 1];
        let choice: Vec<Option<usize>> = (0..=last)
            .map(|number| group(number).find(|at| clauses[*at].shadow || before[*at][0] == 0))
            .collect();
        let allowed = choice.iter().all(Option::is_some);
        assert_eq!(answer.numbers[0] == 0, allowed, "{call} {before:?}");
        for (at, clause) in clauses.iter().enumerate() {
            let takes =
                allowed && choice[groups[at]] == Some(at) && before[at][0] == 0 && !clause.check;
            let expected = before[at][2] - if takes { clause.quantity } else { 0 };
            assert_eq!(answer.clauses[at][0], before[at][0], "{call}");
            assert_eq!(answer.clauses[at][2], expected, "clause {at} of {call}: {answer:?}");
            assert_eq!(look(&mut conn, clause)[2], expected, "clause {at} of {call}");
        }
        let decides = answer.numbers[5] as usize - 1;
        if allowed {
            let all_shadows = choice.iter().flatten().all(|at| clauses[*at].shadow);
            let room = |at: &usize| {
                let quantity = if clauses[*at].check { 0 } else { clauses[*at].quantity };
                answer.clauses[*at][2].checked_div(quantity).map_or((true, 0), |room| (false, room))
            };
            let mut enforced: Vec<usize> = choice.into_iter().flatten().collect();
            enforced.retain(|at| all_shadows || !clauses[*at].shadow);
            assert_eq!(Some(decides), enforced.into_iter().min_by_key(room), "{call}: {answer:?}");
        } else {
            // Never is the longest, within a group and among groups.
            let wait = |at: &usize| match before[*at][3] {
                -1 => i64::MAX,
                wait => wait,
            };
            let speaks: Vec<usize> = (0..=last)
                .filter(|number| choice[*number].is_none())
                .map(|number| group(number).min_by_key(wait).unwrap())
                .collect();
            let only_held = speaks.iter().all(|at| before[*at][0] == 2);
            if last + 1 == number {
                assert_eq!(answer.numbers[0], 1 + i64::from(only_held), "{call}: {before:?}");
            }
            let longest = speaks.iter().map(wait).max().unwrap();
            assert_eq!(
                Some(&decides),
                speaks.iter().find(|at| wait(at) == longest),
                "{call}: {answer:?}"
            );
            assert_eq!(answer.numbers[3], before[decides][3]);
            if answer.numbers[3] > 0 {
                let ms = answer.numbers[3];
                server.clock().advance_ms(ms - 1);
                assert_ne!(
                    all_reply(&conn.cmd(call.replace("RL.ALL", "RL.ALL_RO"))).numbers[0],
                    0,
                    "{call}"
                );
                server.clock().advance_ms(1);
                assert_eq!(
                    all_reply(&conn.cmd(call.replace("RL.ALL", "RL.ALL_RO"))).numbers[0],
                    0,
                    "{call}"
                );
            }
        }
        server.clock().advance_ms(random.below(400));
    }
}

/// The five integers of a clause's look.
fn look(conn: &mut Conn, clause: &Asked) -> Vec<i64> {
    ints_of(&conn.array(&clause.look[..])[..5])
}

fn clause(random: &mut Random, key: &str) -> Asked {
    let quantity = random.below(4);
    // A key keeps its kind and its limit.
    let mut of_key = Random::new(key.bytes().fold(0, |sum, byte| sum * 31 + u64::from(byte)));
    let (limit, period) = (of_key.below(7), 200 + of_key.below(2_000));
    let leave = random.below(3);
    let check = random.below(5) == 0;
    let shadow = !check && random.below(5) == 0;
    let (kind, numbers) = match of_key.below(5) {
        0 => ("WINDOW", format!("{limit} {period}ms {quantity}")),
        1 => ("WINDOW", format!("{limit} 1s {quantity} FIXED")),
        2 => ("THROTTLE", format!("{limit} 3 {period}ms {quantity}")),
        3 => ("ACQUIRE", format!("{limit} {period}ms {quantity}")),
        _ => ("ACQUIRE", format!("{limit} 0 {quantity}")),
    };
    let word = match (check, shadow) {
        (true, _) => " CHECK",
        (_, true) => " SHADOW",
        (false, false) => "",
    };
    Asked {
        text: format!("{kind} {numbers} LEAVE {leave}{word}"),
        look: format!("RL.{kind}_RO {key} {numbers} LEAVE {leave} MS"),
        quantity,
        check,
        shadow,
    }
}
