#!/bin/sh
# Users of an etcd in which workers register, each with the least that it needs. etcdctl finds the cluster by its own variables
# (ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, and ETCDCTL_USER once auth is on).
#
#   etcd-users.sh gateway NAME                  a gateway: reads the workers' records, writes operators' changes
#   etcd-users.sh worker NAME MODEL ROLE ID     a worker: writes its own record, reads nothing else
#   etcd-users.sh enable                        turns auth on; run it last, after `etcdctl user add root` and its password
#
# NAME is the common name of the process's certificate (etcd with --client-cert-auth). For names with passwords set
# TANDEM_PASSWORD. TANDEM_PREFIX is the fleet's --discovery-prefix. MODEL is escaped as in a URL's path: org%2Fname for org/name.
set -eu
prefix="${TANDEM_PREFIX:-/tandem/workers}/"

user() {
  if [ -n "${TANDEM_PASSWORD:-}" ]; then
    etcdctl user add "$1:$TANDEM_PASSWORD"
  else
    etcdctl user add "$1" --no-password
  fi
}

case "${1:-}" in
gateway)
  etcdctl role add "$2"
  etcdctl role grant-permission "$2" read "$prefix" --prefix
  etcdctl role grant-permission "$2" readwrite "${prefix%/}-state/" --prefix
  user "$2"
  etcdctl user grant-role "$2" "$2"
  ;;
worker)
  etcdctl role add "$2"
  etcdctl role grant-permission "$2" readwrite "$prefix$3/$4/$5"
  user "$2"
  etcdctl user grant-role "$2" "$2"
  ;;
enable)
  etcdctl user grant-role root root
  etcdctl auth enable
  ;;
*)
  echo "usage: $0 gateway NAME | worker NAME MODEL ROLE ID | enable" >&2
  exit 2
  ;;
esac
