// Kinds that tests hand to a scheduler as they are defined, without their controllers. No package of these modules is
// built, so `go mod tidy` would drop them.
module heterosis.dev/tests/kubernetes/definitions

go 1.26.0

require sigs.k8s.io/kueue v0.17.0
