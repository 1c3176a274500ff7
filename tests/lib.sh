# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# What the run and interop scripts share: a verdict per case and the closing line, namespaces that
# go away again, and a server and a client that talk to each other with Adverb's own counters as the
# witness.
set -euo pipefail

passed=0 failed=0
spaces=() # network namespaces to remove
scratch=$(mktemp -d)
chmod 755 "$scratch"

clean_up() {
  local space pid
  for space in "${spaces[@]}"; do
    for pid in $(ip netns pids "$space" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$space" 2>/dev/null || true
  done
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

need_root() {
  [ "$EUID" = 0 ] || { echo "$(basename "$0"): needs root, for network namespaces"; exit 77; }
}

verdict() {  # STATUS NAME: one line, and the output of what failed
  if [ "$1" = 0 ]; then
    passed=$((passed + 1))
    echo "PASS $2"
  else
    failed=$((failed + 1))
    echo "FAIL $2"
    [ ! -s "$scratch/detail" ] || sed 's/^/     | /' "$scratch/detail" | tail -n 40
  fi
  : >"$scratch/detail"
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ] && [ "$passed" != 0 ] || exit 1
  exit 0
}

new_space() {  # NAME: a network namespace with its loopback interface up
  ip netns add "$1"
  spaces+=("$1")
  ip -n "$1" link set lo up
}

# Two namespaces A and B joined by a veth of that MTU: 10.78.0.1 and fd78::1, 10.78.0.2 and fd78::2.
new_pair() {  # A B MTU
  local i=1 space
  new_space "$1"
  new_space "$2"
  ip -n "$1" link add veth0 mtu "$3" type veth peer name veth0 mtu "$3" netns "$2"
  for space in "$1" "$2"; do
    ip -n "$space" addr add "10.78.0.$i/24" dev veth0
    ip -n "$space" addr add "fd78::$i/64" dev veth0 nodad
    ip -n "$space" link set veth0 up
    i=$((i + 1))
  done
}

# Two namespaces A and B as of two hosts, 10.78.0.1 and 10.78.0.2, and BETWEEN them a third one,
# whose interfaces to1 and to2 lead to them: what joins those two is the wire.
new_pair_through() {  # A B BETWEEN
  local i=1 space
  new_space "$3"
  ip netns exec "$3" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
  for space in "$1" "$2"; do
    new_space "$space"
    ip -n "$space" link add veth0 type veth peer name "to$i" netns "$3"
    ip -n "$space" addr add "10.78.0.$i/24" dev veth0
    ip -n "$space" link set veth0 up
    ip -n "$3" link set "to$i" up
    i=$((i + 1))
  done
}

set_bundles() {  # on|off SPACE...: do bundles leave whole, or is each packet of one cut off before?
  local how=$1 space
  shift
  for space; do ip netns exec "$space" ethtool -K veth0 tx-udp-segmentation "$how" >/dev/null; done
}

# Waits until COMMAND succeeds, 20 s at most.
until_true() {
  local i
  for ((i = 0; i < 400; i++)); do
    ! "$@" 2>/dev/null || return 0
    sleep 0.05
  done
  return 1
}

listens() {  # PORT [PREFIX...]: does a TCP socket listen there (that is how these programs meet)?
  local port=$1
  shift
  [ -n "$("$@" ss -Hltn "sport = :$port")" ]
}

# Packets of every device that wrote its counters to this file.
packets_in() {
  [ -s "$1" ] || { echo 0; return; }
  python3 -c '
import json, sys
lines = [json.loads(line)["engine"] for line in open(sys.argv[1])]
print(sum(e["sent_pkts"] + e["rcvd_pkts"] for e in lines))' "$1"
}

counter_in() {  # FILE GROUP NAME: the sum of one counter
  [ -s "$1" ] || { echo 0; return; }
  python3 -c '
import json, sys
print(sum(json.loads(line)[sys.argv[2]][sys.argv[3]] for line in open(sys.argv[1])))' "$@"
}

# Both sides' output, for verdict to show.
label_output() {
  local side
  for side in server client; do
    [ ! -e "$scratch/$side.out" ] || sed "s/^/$side: /" "$scratch/$side.out"
  done >"$scratch/detail"
}

# Runs PROG as server and as client over Adverb.  Both must end with status 0 within $limit seconds,
# say nothing of invalid data, and Adverb's counters must show packets on both sides.  Set before:
# $cli; the arrays server_in and client_in (words before the program, such as ip netns exec NS);
# $address, where the client finds the server.
# shellcheck disable=SC2034  # set by those who source this
server_in=() client_in=() address=127.0.0.1 limit=60 options=() port=20000
run_pair() {  # PROG [ARG...]; leaves server.out, client.out, server.json, client.json in $scratch
  local server status=0 side
  port=$((port + 1))
  rm -f "$scratch"/{server,client}.{out,json}
  timeout -k 2 "$limit" "${server_in[@]}" "$cli" run --stats "$scratch/server.json" \
    "${options[@]}" -- "$@" -p "$port" >"$scratch/server.out" 2>&1 </dev/null &
  server=$!
  if until_true listens "$port" "${server_in[@]}"; then
    timeout -k 2 "$limit" "${client_in[@]}" "$cli" run --stats "$scratch/client.json" \
      "${options[@]}" -- "$@" -p "$port" "$address" >"$scratch/client.out" 2>&1 </dev/null ||
      status=$?
    [ "$status" = 0 ] || echo "the client ended with status $status" >>"$scratch/client.out"
  else
    echo "the server does not listen" >>"$scratch/server.out"
    status=1
  fi
  [ "$status" = 0 ] || kill "$server" 2>/dev/null || true
  wait "$server" || { echo "the server ended with status $?" >>"$scratch/server.out"; status=1; }
  ! grep -qis 'invalid data' "$scratch"/{server,client}.out || status=1
  for side in server client; do
    [ "$(packets_in "$scratch/$side.json")" != 0 ] ||
      { echo "no packet in the counters of the $side" >>"$scratch/$side.out"; status=1; }
  done
  label_output
  return "$status"
}

# The pingpongs part without a word: whoever has its last completion exits, and if the wire then
# loses the ACK of the other's last message, nobody is left to send it again.  No protocol can do
# better (nor does hardware), so that one ending, with the other side done and all data right, is no
# failure on a bad wire.
parted() {
  local done_side=$1 left_side=$2
  grep -q 'iters in' "$scratch/$done_side.out" &&
    ! grep -q 'ended with' "$scratch/$done_side.out" &&
    grep -q 'transport retry counter exceeded' "$scratch/$left_side.out" &&
    ! grep -qis 'invalid data' "$scratch"/{server,client}.out
}

# The wire must have been bad: a case in which nothing was sent again proves nothing.
over_bad_wire() {  # NAME PROG [ARG...]
  local name=$1 status=0 again
  shift
  run_pair "$@" || parted client server || parted server client || status=1
  again=$(($(counter_in "$scratch/client.json" engine retransmitted_pkts) +
    $(counter_in "$scratch/server.json" engine retransmitted_pkts)))
  [ "$again" != 0 ] || { echo "nothing was retransmitted" >>"$scratch/detail"; status=1; }
  verdict "$status" "$name: ${1##*/} ${*:2} ($again retransmitted)"
}

# Runs another script, whose cases count as this one's.
count_in() {  # COMMAND...
  local status=0 p f
  rm -f "$scratch/counted"
  "$@" | tee "$scratch/counted" | { grep --line-buffered -v '^[0-9]* passed, ' || true; } ||
    status=$?
  [ "$status" != 77 ] || exit 77
  read -r p _ f _ < <(grep '^[0-9]* passed, ' "$scratch/counted" || echo "0 passed, 1 failed")
  passed=$((passed + p)) failed=$((failed + f))
}

# The figure of the last run's client: MiB/s, or microseconds.
figure() {
  awk '/usec\/iter/ { print $7 " us/iter"; found = 1; exit }
       /^ *#bytes/ { lat = /t_typical/; rate = /tps|BW average/ }
       /^ *[0-9]+ / { line = $0 }
       END {
         if (found || line == "") exit
         split(line, f, " ")
         print lat ? f[5] " us" : f[4] " MiB/s"
       }' \
    "$scratch/client.out"
}
