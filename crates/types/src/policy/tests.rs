//! The nine cells, the language, and what is refused.

use super::explain::{Crash, Loss};
use super::*;

fn policy(pairs: &[(&str, &str)]) -> Result<Policy, Refused> {
    Policy::from_pairs(pairs.iter().copied())
}

fn refused(pairs: &[(&str, &str)]) -> String {
    policy(pairs).unwrap_err().to_string()
}

#[test]
fn the_nine_cells_of_table_2() {
    let cells = [
        ("invisible", "none", "append_client_journal"),
        ("weak", "none", "append_client_journal+volatile_apply"),
        ("strong", "none", "rpcs"),
        ("invisible", "local", "append_client_journal+local_persist"),
        ("weak", "local", "append_client_journal+local_persist+volatile_apply"),
        ("strong", "local", "rpcs+local_persist"),
        ("invisible", "global", "append_client_journal+global_persist"),
        ("weak", "global", "append_client_journal+global_persist+volatile_apply"),
        ("strong", "global", "rpcs+stream"),
    ];
    for (consistency, durability, composition) in cells {
        let by_name = policy(&[("consistency", consistency), ("durability", durability)]).unwrap();
        assert_eq!(by_name.composition().to_string(), composition);
        assert_eq!(by_name.to_string(), format!("{consistency}/{durability}"));
        assert_eq!(by_name, Policy::cell(by_name.consistency(), by_name.durability()));
        // All of it in one key is the same; without persistence, that must be said.
        let pairs = [("consistency", composition), ("durability", "none")];
        let pairs = if durability == "none" { &pairs[..] } else { &pairs[..1] };
        assert_eq!(policy(pairs).unwrap(), by_name);
        let shown = by_name.pairs();
        let pairs: Vec<(&str, &str)> = shown.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(pairs[..2], [("consistency", consistency), ("durability", durability)]);
        assert_eq!(policy(&pairs).unwrap(), by_name, "{pairs:?}");
    }
}

#[test]
fn an_empty_file_is_what_every_directory_has() {
    assert_eq!(policy(&[]).unwrap(), Policy::default());
    assert_eq!(Policy::default().to_string(), "strong/global");
    assert_eq!(Policy::default().allocated_inodes, 100);
}

/// The two systems of section 3.3.
#[test]
fn files_of_the_paper_are_read() {
    let rest = [("allocated_inodes", "100000"), ("interfere_policy", "block")];
    let delta = [("consistency", "append_client_journal"), ("durability", "local_persist")];
    let batch =
        [("consistency", "append_client_journal+volatile_apply"), ("durability", "local_persist")];
    let delta = policy(&[&rest[..], &delta].concat()).unwrap();
    assert_eq!(delta.to_string(), "invisible/local");
    assert_eq!((delta.allocated_inodes, delta.interfere), (100_000, Interfere::Block));
    let batch = policy(&[&rest[..], &batch].concat()).unwrap();
    assert_eq!(batch.to_string(), "weak/local");
    assert_eq!(
        batch.composition().to_string(),
        "append_client_journal+local_persist+volatile_apply"
    );
    // Figure 10's; RPCs is written so.
    let rogue = [("consistency", "RPCs"), ("durability", "stream")];
    assert_eq!(policy(&[&rest[..], &rogue].concat()).unwrap().to_string(), "strong/global");
}

#[test]
fn parallel_binds_more_tightly_than_then() {
    let text = "append_client_journal+global_persist||volatile_apply";
    let made = policy(&[("consistency", text)]).unwrap();
    assert_eq!(made.composition().to_string(), text);
    assert_eq!(made.composition().0.len(), 2);
    assert_eq!(made.to_string(), "weak/global");
    let shown = made.pairs();
    assert_eq!(shown[0].1, text);
    let spaced =
        policy(&[("consistency", " append_client_journal + global_persist || volatile_apply ")]);
    assert_eq!(spaced.unwrap(), made);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let composed = [
        ("append_client_journal+rpcs", "both record"),
        ("volatile_apply", "nothing records"),
        ("stream+rpcs", "comes first"),
        ("append_client_journal||volatile_apply", "not in parallel"),
        ("rpcs+volatile_apply", "nothing is to be applied"),
        ("rpcs+global_persist", "stream does that"),
        ("append_client_journal+volatile_apply+nonvolatile_apply", "the same journal"),
        ("append_client_journal+stream+global_persist", "the same journal"),
        ("rpcs+stream+local_persist", "stronger than local"),
        ("append_client_journal+local_persist+global_persist", "stronger than local"),
        ("rpcs+rpcs", "twice"),
        ("rpcs++stream", "missing"),
        ("", "missing"),
        ("rpcs+flush", "no mechanism"),
        ("Strong", "no mechanism"),
    ];
    for (text, why) in composed {
        let said = refused(&[("consistency", text)]);
        assert!(said.contains(why), "{text}: {said}");
        assert_eq!(said.lines().count(), 1);
    }
    let pairs: [(&[(&str, &str)], &str); 11] = [
        (&[("consistencies", "weak")], "no key"),
        (&[("consistency", "weak"), ("consistency", "weak")], "twice"),
        (&[("durability", "volatile_apply")], "makes nothing durable"),
        (&[("durability", "local_persist+stream")], "stronger than local"),
        (&[("allocated_inodes", "0")], "from 1"),
        (&[("allocated_inodes", "many")], "from 1"),
        (&[("interfere_policy", "maybe")], "neither"),
        (&[("sync_interval", "5s")], "nothing is merged"),
        (&[("consistency", "weak"), ("sync_interval", "1ms")], "no time"),
        (&[("consistency", "weak"), ("sync_interval", "5 parsecs")], "no time"),
        (&[("consistency", "weak"), ("sync_interval", "99999999999999999999")], "no time"),
    ];
    for (pairs, why) in pairs {
        let said = refused(pairs);
        assert!(said.contains(why), "{pairs:?}: {said}");
    }
}

#[test]
fn intervals_have_units() {
    let times =
        [("10", 10_000), ("250ms", 250), ("5 s", 5_000), ("2m", 120_000), ("1h", 3_600_000)];
    for (text, ms) in times {
        let made = policy(&[("consistency", "weak"), ("sync_interval", text)]).unwrap();
        assert_eq!(made.sync_interval, Some(Duration::from_millis(ms)), "{text}");
        let shown = made.pairs();
        assert_eq!(policy(&[("consistency", "weak"), ("sync_interval", &shown[4].1)]), Ok(made));
    }
}

#[test]
fn each_cell_says_what_each_crash_loses() {
    use Loss::*;
    // In the order of `Crash::ALL`.
    let cells = [
        ("strong", "global", [Nothing; 6]),
        ("strong", "local", [Nothing, Nothing, Nothing, Nothing, Nothing, Nothing]),
        ("strong", "none", [Nothing, Nothing, Nothing, Nothing, LastMoments, LastMoments]),
        ("weak", "global", [SinceSync, SinceSync, SinceSync, Nothing, Nothing, Nothing]),
        ("weak", "local", [KeptOnClient, LastMoments, Unmerged, Nothing, Nothing, Nothing]),
        ("invisible", "none", [Unmerged, Unmerged, Unmerged, Nothing, Nothing, Nothing]),
        ("invisible", "stream", [LastMoments, LastMoments, LastMoments, Nothing, Nothing, Nothing]),
    ];
    for (consistency, durability, losses) in cells {
        let made = policy(&[("consistency", consistency), ("durability", durability)]).unwrap();
        assert_eq!(Crash::ALL.map(|crash| made.loses(crash)), losses, "{made}");
    }
}

/// More consistency or durability never loses more.
#[test]
fn a_stronger_cell_loses_less() {
    let rank = |loss: Loss| match loss {
        Loss::Nothing => 0,
        Loss::KeptOnClient => 1,
        Loss::LastMoments => 2,
        Loss::SinceSync => 3,
        Loss::Unmerged => 4,
    };
    let lost =
        |consistency, durability, crash| rank(Policy::cell(consistency, durability).loses(crash));
    for crash in Crash::ALL {
        for consistency in Consistency::ALL {
            assert!(
                lost(consistency, Durability::None, crash)
                    >= lost(consistency, Durability::Local, crash)
            );
            // Objects in the stores come at syncs; the client's disk has each operation.
            if crash == Crash::ClientLost || consistency == Consistency::Strong {
                assert!(
                    lost(consistency, Durability::Local, crash)
                        >= lost(consistency, Durability::Global, crash)
                );
            }
        }
    }
}
