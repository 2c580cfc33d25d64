// Kinds that tests hand to a scheduler as they are defined, without their controllers. No package of these modules is
// built, so `go mod tidy` would drop them.
module heterosis.dev/tests/kubernetes/definitions

go 1.26.0

require (
	github.com/kubeflow/trainer/v2 v2.0.0
	github.com/ray-project/kuberay/ray-operator v1.5.0
	sigs.k8s.io/kueue v0.17.0
)
