use super::*;

#[test]
fn replies_to_the_probe_are_understood() {
    for (text, means) in [
        ("ERR source and destination objects are the same", Some(Acceptance::Accepted)),
        ("NOREPLICAS Not enough good replicas to write.", Some(Acceptance::Refused)),
        ("OOM command not allowed when used memory > 'maxmemory'.", Some(Acceptance::Refused)),
        (
            "ERR Can not execute a command 'copy' while the cluster is down",
            Some(Acceptance::Refused),
        ),
        (
            "ERR Can not execute a write command 'copy' while the cluster is down and readonly",
            Some(Acceptance::Refused),
        ),
        (
            "ERR Attempted to access a non local key in a cluster node",
            Some(Acceptance::Unreachable),
        ),
        ("ERR Unknown Redis command 'COPY'.", None),
    ] {
        assert_eq!(acceptance_in(text.as_bytes()), means, "{text}");
    }
}
