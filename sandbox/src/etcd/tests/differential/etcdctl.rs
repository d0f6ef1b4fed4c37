//! The real `etcdctl`, named in CELL_ETCDCTL, run through one script against both.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

/// One command: its words (`P/` stands for the prefix) and what it reads.
const SCRIPT: &[(&[&str], &str)] = &[
    (&["put", "P/a", "1"], ""),
    (&["put", "P/a", "2", "--prev-kv"], ""),
    (&["put", "P/b", "3"], ""),
    (&["put", "P/c"], "read from the input"),
    (&["put", "P/nobody", "--ignore-value"], ""),
    (&["get", "P/a"], ""),
    (&["get", "P/a", "--print-value-only"], ""),
    (&["get", "P/", "--prefix", "--keys-only"], ""),
    (&["get", "P/", "--prefix", "--sort-by=VALUE", "--order=DESCEND", "--limit=2"], ""),
    (&["get", "P/", "--prefix", "--count-only", "-w", "fields"], ""),
    (&["get", "P/b", "P/d"], ""),
    (&["get", "P/b", "--from-key", "--limit=1"], ""),
    (&["get", "P/nobody"], ""),
    (&["get", "P/a", "--rev=99999999"], ""),
    (&["get", "P/a", "-w", "json"], ""),
    (&["txn"], "value(\"P/a\") = \"2\"\n\nput P/d won\nget P/a\n\nget P/b\n\n"),
    (&["txn"], "version(\"P/a\") = \"9\"\n\nput P/d again\n\nget P/d\ndel P/b\n\n"),
    (&["txn"], "version(\"P/a\") = \"2\"\n\nput P/e 1\nput P/e 2\n\n\n"),
    (&["lease", "grant", "300"], ""),
    (&["lease", "revoke", "1234"], ""),
    (&["lease", "timetolive", "1234"], ""),
    (&["lease", "keep-alive", "--once", "1234"], ""),
    (&["lock", "P/lock", "echo", "held"], ""),
    (&["del", "P/a", "--prev-kv"], ""),
    (&["del", "P/", "--prefix"], ""),
    (&["del", "P/", "--prefix"], ""),
    (&["compaction", "99999999"], ""),
    (&["endpoint", "health"], ""),
    (&["nonsense"], ""),
];

struct Ctl {
    program: String,
    endpoint: String,
    prefix: String,
}

impl Ctl {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--endpoints").arg(&self.endpoint).args(words.iter().map(|word| word.replace("P/", &self.prefix)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for variable in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, words: &[&str], input: &str) -> String {
        let mut child = self.command(words).spawn().expect("CELL_ETCDCTL runs");
        let input = input.replace("P/", &self.prefix);
        // A command that reads nothing may be gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let done = child.wait_with_output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        format!("exit {:?}\n{}", done.status.code(), self.normal(&text))
    }

    /// Without what differs between any two servers: addresses, times, and long numbers (leases, members, clusters, revisions).
    fn normal(&self, text: &str) -> String {
        // What its client library logs is about its own connections.
        let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("{\"level\":")).collect();
        let text = kept.join("\n").replace(&self.endpoint, "ENDPOINT");
        let times = regex::Regex::new(r"took = \S+").unwrap();
        let ids = regex::Regex::new(r#"\b[0-9a-f]{12,16}\b|\b\d{10,}\b|(?:MemberID" : |member_id":)\d+"#).unwrap();
        let revisions = regex::Regex::new(r#"(?i)(revision"?\s?:\s?|"raft_term":|RaftTerm"? : )\d+"#).unwrap();
        let text = times.replace_all(&text, "TIME");
        let text = ids.replace_all(&text, "ID");
        revisions.replace_all(&text, "${1}N").into_owned()
    }

    /// What a watch from a revision tells until the key `last` is put.
    fn watch(&self, words: &[&str]) -> Vec<String> {
        let mut child = self.command(words).spawn().expect("CELL_ETCDCTL runs");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = Vec::new();
        for line in lines.map_while(Result::ok) {
            let last = line == "the end";
            told.push(self.normal(&line));
            if last {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        told
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real etcd and etcdctl, named in CELL_ETCD_ENDPOINT and CELL_ETCDCTL"]
async fn the_real_etcdctl_says_the_same_of_both() {
    let program = std::env::var("CELL_ETCDCTL").expect("CELL_ETCDCTL names the real etcdctl");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let prefix = format!("ctl-{}/", uuid::Uuid::new_v4());
    let base = |mut client: Client, key: String| async move {
        client.put(key, "", None).await.unwrap().header().unwrap().revision()
    };
    let ours_begins = base(server.client().await, format!("{prefix}begin")).await;
    let real_begins = base(Client::connect([endpoint()], None).await.unwrap(), format!("{prefix}begin")).await;
    let of = |endpoint: String| Ctl { program: program.clone(), endpoint, prefix: prefix.clone() };
    let (real, ours) = (of(endpoint()), of(server.endpoint.clone()));
    let compared = tokio::task::spawn_blocking(move || {
        for (words, input) in SCRIPT {
            assert_eq!(ours.run(words, input), real.run(words, input), "etcdctl {} < {input:?}", words.join(" "));
        }
        for side in [&ours, &real] {
            side.run(&["put", "P/zz", "the end"], "");
        }
        let watch = |side: &Ctl, begins: i64| {
            side.watch(&["watch", "P/", "--prefix", "--prev-kv", &format!("--rev={}", begins + 1)])
        };
        let (mine, theirs) = (watch(&ours, ours_begins), watch(&real, real_begins));
        assert_eq!(mine, theirs);
        mine.len()
    });
    let lines = soon(compared).await.unwrap();
    assert!(lines > 20, "the watch told only {lines} lines");
    server.stop().await;
}
