//! The command line parses what the documents show, and refuses the rest.

use clap::CommandFactory;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("cellctl").chain(line.split_whitespace()))
}

#[test]
fn the_tree_of_commands_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_documented_command_parses() {
    for line in [
        "get cells",
        "get guild g-5 -o yaml",
        "get storagecells -n prod -o name",
        "describe mv move-1",
        "events guilds",
        "logs pods shared-1-gateway-0 --tail 5 -f",
        "logs cells shared-1",
        "status",
        "locate 5",
        "guild move plan 5 --to shared-2 -o json",
        "guild move start 5 --dedicated --plan-hash abc --wait",
        "guild move start 5 --to-bucket",
        "guild move watch move-1 --timeout 5m",
        "guild move abort move-1",
        "guild move rollback move-1 --yes",
        "guild pin 5 --cell shared-2",
        "guild dedicate 5 --override --yes",
        "guild release 5",
        "cell cordon shared-1",
        "cell uncordon shared-1",
        "automation pause --note why",
        "automation resume",
        "token issue --bot echo -o json",
        "token issue --user ann",
        "migration plan --from a --to b --units b0001,b0002",
        "migration start --from a --to b --plan-hash abc --yes",
        "migration watch m --timeout 5m -o json",
        "migration advance m --to Cutover",
        "migration pause m",
        "migration resume m --override",
        "migration throttle m --rows-per-second 1000",
        "migration verify m",
        "migration abort m --accept-loss --yes",
        "migration rollback m --accept-loss",
        "migration complete m --ignore-unreachable",
        "migration report m --file /tmp/x.json",
        "storage doctor -o json",
        "storage compact-advice",
        "sandbox up --nodes 3 --state-dir /tmp/x --no-build",
        "sandbox down --delete --yes",
        "sandbox status -o json",
        "sandbox logs node-1 --tail 10",
        "sandbox kubeconfig --print",
        "demo --sessions 50 --rate 5 --duration 20s --seed 7 --keep -o json",
        "completion bash",
        "version -o json",
    ] {
        assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
    }
}

#[test]
fn every_line_that_the_documents_show_parses() {
    let documents = [
        include_str!("../../../README.md"),
        include_str!("../../../docs/migrate.md"),
        include_str!("../../../docs/storage.md"),
        include_str!("../../../deploy/README.md"),
    ];
    let shown = documents.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("cellctl "));
    let mut seen = 0;
    for line in shown {
        let line = line.split(" #").next().unwrap_or_default().replace("GUILD", "5");
        assert!(parse(&line).is_ok(), "{line}: {}", parse(&line).unwrap_err());
        seen += 1;
    }
    assert!(seen >= 25, "only {seen} lines were found: they are to begin with cellctl");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for line in [
        "",
        "get",
        "get wombats",
        "get cells -o csv",
        "locate",
        "locate x5",
        "locate 0",
        "locate 99999999999999999999",
        "guild move plan 5",
        "guild move plan 5 --to a --dedicated",
        "guild move start 5 --to-bucket --to a",
        "guild pin 5",
        "token issue",
        "token issue --bot a --user b",
        "sandbox up --nodes 0",
        "sandbox up --nodes 251",
        "demo --sessions 1",
        "demo --rate -1",
        "status --timeout 5x",
        "status --timeout 0s",
        "status --timeout 99999999999999999h",
        "completion cmd",
    ] {
        let error = parse(line).map(|cli| format!("{cli:?}")).unwrap_err();
        assert!(error.use_stderr() || line.is_empty(), "{line}");
    }
}

#[test]
fn durations_read_as_people_write_them() {
    assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
    assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
    assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
    for text in ["", "s", "1d", "-1s", "1.5s", "0", "999h"] {
        assert!(duration(text).is_err(), "{text}");
    }
}
